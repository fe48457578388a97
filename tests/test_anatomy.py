"""Anatomy: parts add up to the model, in the order of computation, whatever the family."""

import pytest

import vitreous as vt
from tests.family import others_slowly
from vitreous.anatomy import anatomy, split_camel_case, units
from vitreous.models import MODELS


@pytest.mark.parametrize(
    "name", others_slowly(MODELS, quick=("vit_tiny_16", "swin_tiny", "mobilevit_xxs", "xcit_nano_12_16"))
)
def test_parts_add_up_and_every_block_is_there(name):
    made = anatomy(name)
    cost = made.cost
    assert 0 <= made.other_parameters < 0.001 * cost.parameters
    assert sum(part.macs for part in made.parts) == cost.macs
    assert sum(len(part.titles) for part in made.parts if part.is_block) == cost.depth
    assert {part.stride for part in made.parts} >= {height for height, _ in cost.meta_model.strides}


def test_swin_by_hand():
    parts = [part for part in anatomy("swin_tiny").parts if part.is_block]
    assert [len(part.titles) for part in parts] == [2, 2, 6, 2]
    assert [part.grid for part in parts] == [(56, 56), (28, 28), (14, 14), (7, 7)]
    assert [part.dim for part in parts] == [96, 192, 384, 768]
    assert parts[0].titles == ("window attention", "shifted window attention")
    assert parts[2].distinct_titles == parts[0].distinct_titles
    assert len(parts[2].titles) == 6


def test_a_vit_has_one_stage_and_its_class_token_is_no_part():
    made = anatomy("vit_tiny_16")
    assert [part.module_path for part in made.parts] == ["stem", "position", "blocks", "norm", "head"]
    assert made.parts[2].num_tokens == 197
    assert made.parts[2].grid == (14, 14)
    assert made.other_parameters == 192


def test_another_mixer_is_seen():
    (blocks,) = (part for part in anatomy("vit_tiny_16", mixer="performer").parts if part.is_block)
    assert blocks.distinct_titles == ("performer attention",)


def test_units_cover_the_model_once():
    model = vt.create_model("coatnet_nano_rw", image_size=64)
    seen = [id(p) for _, unit in units(model) for p in unit.parameters()]
    assert len(seen) == len(set(seen)) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("name", "words"),
    [("WindowAttention", "window attention"), ("MBConv", "MB conv"), ("Conv2d", "conv 2d")],
)
def test_spoken(name, words):
    assert split_camel_case(name) == words
