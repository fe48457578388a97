"""The model interface: all variants on the meta device, the smallest of each family with weights."""

import copy
import re

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.family import SMALLEST, others_slowly, small, tiny
from tests.parity import error, fill
from vitreous.models import FAMILIES, MODELS

#: Parameters that do not affect the classifier: CvT's class token bypasses the convolutions.
FOR_THE_MAPS_ALONE = {"cvt_13": r"stages\.2\.blocks\.[09]\.mixer\.q\.(conv|norm)\.(weight|bias)"}


def test_no_family_is_left_out():
    configs = {family.config for family in FAMILIES.values()}
    backbones = {config for config in configs if issubclass(config, vt.Config)}
    assert {type(MODELS[name]) for name in SMALLEST} == backbones
    assert configs - backbones == {vt.SegmenterConfig}, "models on a backbone are tested separately"


@pytest.mark.parametrize("name", others_slowly(vt.list_models()))
def test_every_variant_keeps_the_contract_on_the_meta_device(name):
    with torch.device("meta"):
        model = vt.create_model(name)
        images = torch.empty(2, 3, *model.config.image_size)
        features = model.features(images)
        (output, *_) = model.heads(features).values()
    assert output.shape == (2, model.config.num_classes or model.dims[-1])
    assert [m.values.shape[1] for m in features.maps] == list(model.dims)
    assert [m.stride for m in features.maps] == list(model.strides)
    for feature_map in features.maps:
        for axis in (0, 1):
            assert feature_map.values.shape[2 + axis] == -(-images.shape[2 + axis] // feature_map.stride[axis])
    assert features.tokens.shape[1] == features.num_prefix + features.grid[0] * features.grid[1]
    assert len(model.blocks) == model.config.depth
    assert model.spec.preprocess.image_size == model.config.image_size


@pytest.mark.parametrize("name", SMALLEST)
class TestForReal:
    def test_forward_averages_the_heads(self, name):
        model, images = tiny(name), torch.randn(2, 3, 64, 64)
        heads = model.heads(model.features(images))
        assert all(output.shape == (2, 7) for output in heads.values())
        assert torch.allclose(model(images), torch.stack(list(heads.values())).mean(0), atol=1e-6)

    def test_any_size(self, name):
        model = tiny(name)
        for size in ((48, 112), (57, 78), (129, 65)):
            images = torch.randn(1, 3, *size)
            features = model.features(images)
            assert model.pooled(features).isfinite().all()
            for feature_map in features.maps:
                expected = tuple(-(-side // stride) for side, stride in zip(size, feature_map.stride, strict=True))
                assert tuple(feature_map.values.shape[2:]) == expected

    def test_one_image_does_not_depend_on_its_batch(self, name):
        model, images = tiny(name).double(), torch.randn(4, 3, 64, 80).double()
        together = model(images)
        alone = torch.cat([model(image[None]) for image in images])
        assert error(alone, together) < 1e-5
        images[1:] *= -100
        assert error(model(images)[:1], together[:1]) < 1e-5

    @pytest.mark.parametrize("build", [tiny, pytest.param(small, marks=pytest.mark.slow)])
    def test_every_parameter_gets_a_gradient(self, name, build):
        model = build(name)
        heads = model.heads(model.features(torch.randn(2, 3, 64, 64)))
        sum(output.square().sum() for output in heads.values()).backward()
        silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
        assert all(re.fullmatch(FOR_THE_MAPS_ALONE.get(name, ""), key) for key in silent), silent

    def test_reset_head(self, name):
        model, images = tiny(name), torch.randn(2, 3, 64, 64)
        model.name_classes("abcdefg")
        model.reset_head(3)
        assert model(images).shape == (2, 3)
        assert model.config.num_classes == 3
        assert not model.spec.labels.names
        model.reset_head(0)
        assert model(images).shape == (2, model.dims[-1])

    def test_save_and_load(self, name, tmp_path):
        model, images = tiny(name), torch.randn(2, 3, 64, 64)
        model.name_classes("abcdefg")
        vt.save(model, tmp_path / "model.safetensors")
        again = vt.load(tmp_path / "model.safetensors").eval()
        assert again.config == model.config
        assert again.spec == model.spec
        assert torch.equal(again(images), model(images))
        assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]

    def test_channels(self, name):
        assert tiny(name, num_channels=5)(torch.randn(1, 5, 64, 64)).shape == (1, 7)

    def test_another_precision_also_with_a_new_head_and_a_resampled_grid(self, name):
        """Computed in float64; for bfloat16, unsafe on some CPUs, only dtypes are checked."""
        model = tiny(name).double()
        model.reset_head(3)
        assert model(torch.randn(1, 3, 64, 80).double()).dtype == torch.float64
        model.bfloat16().reset_head(4)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}

    def test_a_copy_is_independent(self, name):
        model, images = tiny(name), torch.randn(1, 3, 64, 64)
        before, twin = model(images), copy.deepcopy(model)
        fill(twin, seed=1)
        assert torch.equal(model(images), before)
        assert error(twin(images), before) > 1e-2


@pytest.mark.parametrize("name", [name for name in SMALLEST if hasattr(MODELS[name], "drop_path_rate")])
def test_training_mode_draws_and_evaluation_does_not(name):
    build = small if name in ("hybrid_resnet18_tiny", "cvt_13") else tiny  # otherwise the only block is never dropped
    model = build(name, drop_path_rate=0.5)
    images = torch.randn(8, 3, 64, 64)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


def test_names_can_be_listed_by_pattern():
    assert vt.list_models("deit_tiny*") == ["deit_tiny_16", "deit_tiny_distilled_16"]
    assert vt.list_models("vit_down*") == ["vit_down_tiny_16", "vit_down_small_16", "vit_down_base_16"]


def test_numpy_scalars_are_accepted():
    model = vt.create_model("vit_tiny_16", depth=np.int64(1), num_classes=np.int32(7), image_size=np.int64(32))
    assert model.config == MODELS["vit_tiny_16"].override(depth=1, num_classes=7, image_size=32)
    assert type(model.config.num_classes) is int


def test_iterating_unnamed_labels_terminates():
    assert list(vt.Labels()) == []
    assert "cat" not in vt.Labels()
    assert vt.Labels()[3] == "class 3"


def test_any_config_builds():
    config = MODELS["vit_tiny_16"].override(depth=1)
    assert len(vt.create_model(config, num_classes=3).blocks) == 1


BAD = [
    (lambda: vt.create_model("vit_tiny_16", image_siz=64), "no option 'image_siz'; did you mean 'image_size'?"),
    (lambda: vt.create_model("vit_tniy_16"), "unknown model 'vit_tniy_16'; did you mean 'vit_tiny_16'?"),
    (lambda: vt.create_model("vit_tiny_16", position="lerned"), "got 'lerned'; did you mean 'learned'?"),
    (
        lambda: vt.create_model("vit_tiny_16", image_size=8),
        r"image_size \(8, 8\) is smaller than patch_size \(16, 16\)",
    ),
    (lambda: vt.create_model("vit_tiny_16", image_size=(8, 8, 8)), "must be a positive int or"),
    (lambda: vt.create_model("vit_tiny_16", num_heads=5), "multiple of num_heads, got dim=192, num_heads=5"),
    (lambda: vt.create_model("vit_tiny_16", num_classes=-1), "num_classes must not be negative, got -1"),
    (lambda: vt.create_model("vit_tiny_16", num_channels=0), "num_channels must be at least 1"),
    (lambda: vt.create_model("vit_tiny_16", depth=2000), "depth must lie between"),
    (lambda: vt.create_model("vit_tiny_16", depth=True), "depth must be a whole number, got True"),
    (lambda: vt.create_model("vit_tiny_16", dim=0), "dim must be at least 1"),
    (lambda: vt.create_model("vit_tiny_16", num_registers=-1), "num_registers must not be negative, got -1"),
    (lambda: vt.create_model("vit_tiny_16", mlp_ratio=float("nan")), "mlp_ratio must be a number"),
    (lambda: vt.create_model("vit_tiny_16", layer_scale="small"), "layer_scale must be a number"),
    (lambda: vt.create_model("vit_tiny_16", attention_drop_rate=1.5), "attention_drop_rate must lie in"),
    (lambda: vt.create_model("vit_tiny_16", image_size=None), "must be a positive int or"),
    (lambda: vt.create_model(3), "by name or by config, got int"),
    (lambda: vt.create_model("vit_tiny_16", class_token=False), "choose pool='mean'"),
    (lambda: vt.create_model("vit_tiny_16", distilled=True, pool="mean"), "distilled=True needs pool='class'"),
    (lambda: vt.create_model("vit_tiny_16", token_drop_rate=0.5, position="rope"), "positions added to the tokens"),
    (lambda: vt.create_model("vit_tiny_16", drop_path_rate=1.5), r"drop_path_rate must lie in \[0, 1\)"),
    (lambda: vt.create_model("vit_tiny_16")(torch.randn(1, 3, 8, 224)), "8×224 pixels are smaller than one patch"),
    (lambda: vt.create_model("vit_tiny_16")(torch.randn(1, 1, 64, 64)), "create the model with num_channels=1"),
    (lambda: vt.create_model("vit_tiny_16")(torch.randn(3, 64, 64)), r"shape \(batch, channels, height, width\)"),
    (lambda: vt.create_model("vit_tiny_16")(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)), "vt.transforms"),
    (lambda: vt.create_model("vit_tiny_16").name_classes(["cat", "dog"]), "2 class names for 1000 classes"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_invalid_input_raises_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
