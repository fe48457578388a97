"""Every family's shrunk configuration is small and runs with the shared recipe."""

from dataclasses import replace

import pytest
import torch

import vitreous as vt
from vitreous.models import FAMILIES
from vitreous.recipes.shapes_family import SHRUNK, recipe


@pytest.mark.parametrize("name", SHRUNK)
def test_small(name):
    with torch.device("meta"):
        model = vt.create_model(SHRUNK[name], num_classes=10)
    assert sum(p.numel() for p in model.parameters()) <= 2_000_000


def test_no_family_is_left_out():
    assert {name for name, family in FAMILIES.items() if not family.shrunk} == {"resnet", "segmenter"}
    assert len(SHRUNK) == sum(len(family.shrunk) for family in FAMILIES.values()), "two families share a title"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHRUNK)
def test_learns_two_steps_and_reports(name, tmp_path):
    config = SHRUNK[name].override(image_size=64)
    outcome = vt.train(replace(recipe, model=config).smoke(), tmp_path / "run")
    assert outcome.steps == 2
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert vt.load(tmp_path / "run" / "model.safetensors").config == config.override(num_classes=10)
