"""The map in docs is the one that the models draw today."""

from pathlib import Path

import pytest

from benchmarks import family_map
from vitreous.catalog import catalog

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_every_family_is_drawn():
    drawn = {one.paper.family for one in catalog() if one.name in family_map.ROWS}
    assert {one.paper.family for one in catalog()} - drawn == {"ViT", "DINOv2", "PoolFormerV2"}, "like DeiT, PoolFormer"


@pytest.mark.slow
def test_the_page_is_up_to_date(tmp_path):
    for folder in ("concepts", "images"):
        (tmp_path / folder).mkdir()
    family_map.main(tmp_path)
    page = "concepts/map.md"
    assert (tmp_path / page).read_text() == (DOCS / page).read_text(), "run python -m benchmarks.family_map"
    assert all((tmp_path / "images" / f"{name}.png").stat().st_size > 50_000 for name in ("map", "accuracy"))
