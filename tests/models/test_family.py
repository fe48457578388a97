"""Family records: the tables derived from them, and a custom backbone."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from einops import rearrange
from torch import nn

import vitreous as vt
from vitreous.catalog import entry
from vitreous.deploy.tracing import why_fixed
from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import Mixer
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import PatchEmbed, grid_of
from vitreous.models import FAMILIES, FILES, MODELS, base, find_family
from vitreous.models.base import Backbone, Config, FeatureMap, Features, classifier
from vitreous.models.family import Family, Paper
from vitreous.models.vit import ViTConfig
from vitreous.weights import keymaps


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    dim: int = 16
    depth: int = 2
    mixer: Mixer = FullAttention()

    def build(self):
        return Toy(self)


class Toy(Backbone):
    def __init__(self, config):
        super().__init__(config)
        self.strides, self.dims = ((8, 8),), (config.dim,)
        self.stem = PatchEmbed((8, 8), config.num_channels, config.dim)
        context = config.context(dim=config.dim, num_heads=2, grid=grid_of(config.image_size, (8, 8)))
        self.blocks = nn.ModuleList(
            PreNormBlock(config.dim, config.mixer.build(context), Mlp(config.dim, 32)) for _ in range(config.depth)
        )
        self.head = classifier(config.dim, config.num_classes)

    def features(self, images):
        x, grid = self.stem(images), grid_of(tuple(images.shape[2:]), (8, 8))
        for layer in self.blocks:
            x = layer(x, grid)
        return Features(x, grid, 0, (FeatureMap(rearrange(x, "b (y x) d -> b d y x", y=grid[0]), (8, 8)),))

    def pooled(self, features):
        return features.tokens.mean(dim=1)


FAMILY = Family(
    name="toy",
    config=ToyConfig,
    variants={"toy_1": ToyConfig(image_size=(32, 32), num_classes=5), "toy_2": ToyConfig(dim=32)},
    papers={"toy_2": Paper("Wide toy", "Toys", "Nobody", 2026), "*": Paper("Toy", "Toys", "Nobody", 2026)},
)


@pytest.fixture
def registered(monkeypatch):
    """Register the family as a line in models/__init__.py would."""
    monkeypatch.setitem(FAMILIES, FAMILY.name, FAMILY)
    for name, config in FAMILY.variants.items():
        monkeypatch.setitem(MODELS, name, config)


def test_a_config_alone_can_be_built_counted_and_recorded():
    config = FAMILY.variants["toy_1"]
    model = vt.create_model(config, num_classes=3)
    with vt.record(model) as trace:
        logits = model(torch.randn(2, 3, 32, 40))
    assert logits.shape == (2, 3)
    assert list(trace) == ["blocks.0", "blocks.1"]
    assert trace.rollout().shape == (2, 4, 5)
    assert vt.cost(config).parameters == sum(p.numel() for p in config.build().parameters())


def test_loading_an_unregistered_family_needs_its_config(tmp_path):
    model = vt.create_model(FAMILY.variants["toy_1"])
    vt.save(model, tmp_path / "toy.safetensors")
    with pytest.raises(ValueError, match=r"does not contain a known model config .*or a custom config"):
        vt.load(tmp_path / "toy.safetensors")
    assert find_family(model.config) is None
    assert keymaps.keymaps_of(model) == ()


@pytest.mark.usefixtures("registered")
def test_a_registered_family_needs_nothing_else(tmp_path):
    model = vt.create_model("toy_1", mixer="pool")
    vt.save(model, tmp_path / "toy.safetensors")
    loaded = vt.load(tmp_path / "toy.safetensors")
    assert loaded.config == model.config
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(loaded(images), model.eval()(images))
    assert find_family(model.config) is FAMILY
    assert keymaps.keymaps_of(model) == ()
    assert "minutes" in why_fixed(model, (32, 32))
    assert "toy_2" in vt.list_models("toy*")
    assert entry.__wrapped__("toy_1").paper.family == "Toy"
    assert entry.__wrapped__("toy_2").paper.family == "Wide toy"


def test_a_record_fills_in_what_is_left_out():
    assert FAMILY.smallest == FAMILY.plotted == ("toy_1",)
    assert not FAMILY.shrunk
    assert not FAMILY.exports_any_size


@pytest.mark.parametrize("name", FILES)
def test_every_record_is_about_its_own_file(name):
    family = FAMILIES[name]
    assert family.name == name, "weights files, key maps and the model file share one name"
    assert family.config.__module__ == f"vitreous.models.{name}"
    assert all(type(config) is family.config for config in (*family.variants.values(), *family.shrunk.values()))
    assert {*family.smallest, *family.plotted} <= set(family.variants)


def test_every_file_of_models_is_a_family_or_part_of_the_contract():
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")}
    assert files - set(FILES) == {"__init__", "base", "edit", "engine", "family", "last_block", "timm_names"}, (
        "a family needs its line in FILES"
    )


def test_every_key_map_belongs_to_a_family():
    files = {path.stem for path in Path(keymaps.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(FILES) - files == {"pyramid", "hybrid_resnet", "segmenter"}, "no public weights"
    assert files - set(FILES) == {"google"}, "a layout of arrays, translated before any family's names"


def test_a_derived_config_belongs_to_the_family_it_comes_from():
    @dataclass(frozen=True, kw_only=True)
    class OwnConfig(ViTConfig):
        pass

    assert find_family(OwnConfig()).name == "vit"
    assert find_family(FAMILIES["pvt_v2"].config()).name == "pvt_v2"


def test_no_two_families_share_a_model():
    assert len(MODELS) == sum(len(family.variants) for family in FAMILIES.values())
