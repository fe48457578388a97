"""The catalog: complete, recomputed, filtered and sorted."""

import pytest

from tests.family import others_slowly
from vitreous.catalog import catalog, compute_entry, entry, recorded
from vitreous.models import FAMILIES, MODELS, paper_of
from vitreous.weights.accuracy import PUBLISHED_ACCURACY, best


def test_every_model_is_recorded_in_the_order_of_the_table():
    assert list(recorded()) == list(MODELS), "python -m vitreous.catalog writes it anew"


@pytest.mark.parametrize("name", others_slowly(MODELS, quick=("vit_tiny_16", "swin_tiny", "mobilevit_xxs", "resnet18")))
def test_what_is_recorded_is_so(name):
    assert compute_entry(name) == recorded()[name], "python -m vitreous.catalog writes it anew"


def test_filters_and_order():
    small = catalog("*", max_parameters=6e6, max_macs=2e9, with_weights=True, order="accuracy")
    assert small
    assert all(one.parameters <= 6e6 and one.macs <= 2e9 and one.weights for one in small)
    top1 = [one.accuracy.top1 for one in small if one.accuracy]
    assert top1 == sorted(top1, reverse=True)
    assert not any(one.accuracy for one in small[len(top1) :])
    sizes = [one.parameters for one in catalog(order="parameters")]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(MODELS)
    assert [one.name for one in catalog("swin_[ts]*")] == ["swin_tiny", "swin_small"]
    assert {one.paper.family for one in catalog(family="deit")} == {"DeiT"}


def test_an_unknown_family_says_which_there_are():
    with pytest.raises(ValueError, match=r"no family 'swim'.*Swin"):
        catalog(family="swim")


def test_weights_are_loadable_names():
    assert "ms_in1k" in entry("swin_tiny").weights


def test_every_model_has_its_paper_and_every_paper_a_model():
    used = {paper_of(name) for name in MODELS}
    named = [family for family in FAMILIES.values() if family.variants]
    assert used == {paper for family in named for paper in family.papers.values()}
    assert paper_of("pvt_v2_b0").family == "PVTv2"
    assert paper_of("vit_small_r26_s32").family == "hybrid ViT"


def test_published_accuracy_belongs_to_models_and_is_in_per_cent():
    assert {row.model for row in PUBLISHED_ACCURACY} <= set(MODELS)
    assert all(60 < row.top1 < 90 for row in PUBLISHED_ACCURACY)
    keys = [(row.model, row.data, row.pixels) for row in PUBLISHED_ACCURACY]
    assert len(keys) == len(set(keys))
    assert best("swin_base").top1 == 85.272
    assert best("vit_giant_14") is None
