"""The map in docs is the one that the models draw today."""

import importlib.util
from pathlib import Path

import pytest

from vitreous.catalog import catalog

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def drawing():
    spec = importlib.util.spec_from_file_location("map", DOCS / "map.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_family_is_drawn(drawing):
    drawn = {one.paper.family for one in catalog() if one.name in drawing.ROWS}
    assert {one.paper.family for one in catalog()} - drawn == {"ViT", "DINOv2", "PoolFormerV2"}, "like DeiT, PoolFormer"


@pytest.mark.slow
def test_the_page_is_up_to_date(drawing, tmp_path):
    (tmp_path / "images").mkdir()
    drawing.main(tmp_path)
    assert (tmp_path / "map.md").read_text() == (DOCS / "map.md").read_text(), "python docs/map.py writes it anew"
    assert all((tmp_path / "images" / f"{name}.png").stat().st_size > 50_000 for name in ("map", "accuracy"))
