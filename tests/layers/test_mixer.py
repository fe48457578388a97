"""Mixers are chosen by name, options or JSON, and raise in contexts that they do not support."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import vitreous as vt
from vitreous.layers.attention import FullAttention
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mixers import MIXERS


class Blend(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, x, grid, num_prefix=0):
        return self.share * x.mean(1, keepdim=True).expand_as(x)


@dataclass(frozen=True, kw_only=True)
class OwnMixer(Mixer):
    name: ClassVar[str] = "own"
    no_prefix: ClassVar[str] = "it would blend them in"
    share: float = 0.5

    def make(self, context):
        return Blend(self.share)


WITHOUT_PREFIX = {"class_token": False, "pool": "mean"}


def tiny(**options):
    return vt.create_model("vit_tiny_16", depth=2, image_size=64, num_classes=5, **options)


@pytest.mark.parametrize(
    "given", ["attention", FullAttention(), {"mixer": "attention"}, {"mixer": "attention", "temperature": 1}]
)
def test_by_name_options_or_json(given):
    assert tiny(mixer=given).config == tiny().config


def test_custom_mixer(tmp_path):
    model = tiny(mixer=OwnMixer(share=0.25), **WITHOUT_PREFIX).eval()
    images = torch.randn(2, 3, 48, 80)
    model(images).sum().backward()
    assert model.blocks[1].mixer.share.grad.abs() > 0
    vt.save(model, tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match=r"pass the model, e.g. model="):
        vt.load(tmp_path / "own.safetensors")
    again = vt.load(tmp_path / "own.safetensors", model=model.config).eval()
    assert torch.equal(again(images), model(images))


def test_options_travel_with_the_file(tmp_path):
    model = tiny(mixer=FullAttention(temperature=2.0)).eval()
    vt.save(model, tmp_path / "warm.safetensors")
    assert vt.load(tmp_path / "warm.safetensors").config.mixer == FullAttention(temperature=2.0)


BAD = [
    ({"mixer": "atention"}, "must be a mixer's name or options, got 'atention'; did you mean 'attention'?"),
    ({"mixer": 3}, "must be a mixer's name or options, got 3"),
    ({"mixer": {"mixer": "attention", "temprature": 2}}, "FullAttention has no option 'temprature'; did you mean"),
    ({"mixer": OwnMixer()}, "'own' does not support prefix tokens .it would blend them in.; use a model without"),
    ({"mixer": OwnMixer(), "token_drop_rate": 0.5, **WITHOUT_PREFIX}, "does not support token_drop_rate"),
    ({"mixer": OwnMixer(), "position": "rope", **WITHOUT_PREFIX}, "does not support position='rope'"),
    ({"mixer": OwnMixer(), "position": "relative", **WITHOUT_PREFIX}, "never forms the logits"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_unsupported_contexts_raise(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        tiny(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MIXERS)
def test_the_table_is_keyed_by_name_and_every_row_survives_json(name):
    assert MIXERS[name].name == name
    assert Mixer.given("mixer", MIXERS[name].to_json()) == MIXERS[name]


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("grid", [(1, 1), (1, 9), (57, 78)])
def test_every_mixer_takes_any_grid_and_keeps_images_apart(name, grid):
    mixer = MIXERS[name].build(MixerContext(dim=24, num_heads=3, grid=(8, 8))).eval()
    tokens = torch.randn(2, grid[0] * grid[1], 24)
    with torch.no_grad():
        together = mixer(tokens, grid)
        alone = mixer(tokens[:1], grid)
        tokens[1] *= 100
        beside_another = mixer(tokens, grid)[:1]
    assert together.shape == tokens.shape
    assert together.isfinite().all()
    assert torch.allclose(alone, together[:1], atol=1e-5)
    assert torch.allclose(beside_another, together[:1], atol=1e-5)
