"""Every family supports every mixer in its blocks, or raises with a reason."""

import pytest
import torch

import vitreous as vt
from tests.family import SMALLEST, shallow, small
from tests.parity import error
from vitreous.layers.mixers import MIXERS
from vitreous.models import MODELS
from vitreous.models.pyramid import PyramidConfig, StageConfig

PREFIX_AFTER_THE_MIXERS = ("xcit_nano_12_16",)
FAMILIES = [name for name in SMALLEST if hasattr(MODELS[name], "mixer")]


#: Every mixer in two families, and three mixers in every family; all pairs would take a minute longer.
PAIRS = [
    pytest.param(
        family,
        mixer,
        marks=[pytest.mark.slow]
        * (family not in ("vit_tiny_16", "vit_down_tiny_16") and mixer not in ("window", "covariance", "depthwise")),
    )
    for family in FAMILIES
    for mixer in MIXERS
]


@pytest.mark.parametrize(("family", "mixer"), PAIRS)
def test_every_family_supports_every_mixer_or_raises(family, mixer):
    with torch.device("meta"):
        images = torch.empty(2, 3, 96, 72)
        num_prefix = vt.create_model(family, **shallow(family)).features(images).num_prefix
        if MIXERS[mixer].no_prefix and num_prefix and family not in PREFIX_AFTER_THE_MIXERS:
            with pytest.raises(ValueError, match="does not support prefix tokens"):
                vt.create_model(family, mixer=mixer, **shallow(family))
        else:
            model = vt.create_model(family, mixer=mixer, num_classes=5, **shallow(family))
            assert model(images).shape == (2, 5)


@pytest.mark.parametrize("mixer", MIXERS)
class TestForReal:
    def model(self, mixer):
        """Without class token, so that all cells of the last block are used; on a grid larger than a window."""
        return small("vit_tiny_16", mixer=mixer, depth=2, patch_size=4, class_token=False, pool="mean")

    def test_takes_any_size_and_every_parameter_learns(self, mixer):
        model = self.model(mixer)
        model(torch.randn(2, 3, 57, 78)).square().sum().backward()
        silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
        assert not silent

    def test_save_and_load(self, mixer, tmp_path):
        model, images = self.model(mixer), torch.randn(2, 3, 64, 80)
        vt.save(model, tmp_path / "model.safetensors")
        again = vt.load(tmp_path / "model.safetensors").eval()
        assert again.config == model.config
        assert torch.equal(again(images), model(images))

    def test_the_mixer_matters(self, mixer):
        model, images = self.model(mixer), torch.randn(1, 3, 64, 64)
        other = "window" if mixer == "attention" else "attention"
        plain = vt.create_model(model.config, mixer=other).eval()
        plain.load_state_dict(model.state_dict(), strict=False)
        assert error(model(images), plain(images)) > 1e-3


class TestCustomStages:
    config = PyramidConfig(
        image_size=64,
        num_classes=5,
        stem="conv",
        stages=(
            StageConfig(dim=16, depth=2, num_heads=1, mixer="window"),
            StageConfig(dim=32, depth=1, num_heads=2, mixer="performer", downsample="merge"),
            StageConfig(dim=64, depth=2, num_heads=4, downsample="patch", mlp_ratio=2),
        ),
    )

    def test_builds_counts_trains_and_loads(self, tmp_path):
        model = vt.create_model(self.config).train()
        features = model.features(torch.randn(2, 3, 64, 48))
        assert [tuple(m.values.shape[1:]) for m in features.maps] == [(16, 16, 12), (32, 8, 6), (64, 4, 3)]
        model.heads(features)["class"].sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        assert vt.cost(model).parameters == sum(p.numel() for p in model.parameters())
        vt.save(model, tmp_path / "own.safetensors")
        assert vt.load(tmp_path / "own.safetensors").config == self.config

    def test_invalid_stages_raise(self):
        with pytest.raises(ValueError, match="multiple of num_heads, got dim=16, num_heads=3"):
            StageConfig(dim=16, depth=1, num_heads=3)
        with pytest.raises(ValueError, match="each of stages must be a StageConfig, got 'attention'"):
            PyramidConfig(stages=["attention"])
        with pytest.raises(ValueError, match="StageConfig has no option 'heads'; did you mean 'num_heads'"):
            PyramidConfig(stages=[{"dim": 16, "depth": 1, "heads": 2}])
