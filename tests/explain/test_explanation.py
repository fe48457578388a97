"""An explanation holds what the model computed, for every kind of model, and compares maps with random ones."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from tests.explain.explained import named, photo
from tests.family import tiny
from vitreous.explain.evidence import PointEvidence, TokenNorms
from vitreous.explain.explainer import explain as explain_image
from vitreous.explain.explainer import resolve_class


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return photo(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def vit(image):
    return explain_image(named("vit_tiny_16"), image, quick=True, name="one")


@pytest.fixture(scope="module")
def resnet(image):
    return explain_image(named("resnet18"), image, quick=True, name="two")


def test_an_explanation_holds_what_the_model_computed(image):
    model = named("vit_tiny_16")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    steps = []
    explanation = explain_image(model, image, progress=steps.append)
    assert explanation.image.shape == (3, 64, 64)
    assert explanation.image.dtype == torch.uint8
    assert abs(sum(share for _, share in explanation.answer.best(7)) - 1) < 1e-5
    assert explanation.answer.best(1)[0] == (explanation.answer.target_name, explanation.answer.target_probability)
    for one in (*explanation.methods.values(), *explanation.chance):
        assert one.heat.shape == (4, 4)
        assert one.deletion.shape == one.insertion.shape == (21,)
        assert abs(one.deletion[0] - explanation.answer.target_probability) < 1e-5
        assert abs(one.insertion[-1] - explanation.answer.target_probability) < 1e-5
    assert torch.allclose(explanation.lens["blocks.1"], explanation.answer.probabilities, atol=1e-5)
    assert steps == [*explanation.methods, "random", "layers", "logit lens"]
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_random_orders_differ_and_are_the_same_next_time(image):
    model = named("vit_tiny_16")
    first, second = (explain_image(model, image, methods=["rollout"]).chance for _ in range(2))
    assert not torch.equal(first[0].heat, first[1].heat)
    assert all(torch.equal(a.heat, b.heat) for a, b in zip(first, second, strict=True))


def test_quick_runs_fewer_methods_but_at_least_one(vit, resnet):
    assert set(vit.methods) == {"class attention", "mean attention", "rollout", "gradient rollout"}
    assert set(resnet.methods) == {"occlusion", "integrated gradients"}


def test_the_chance_limit_follows_random_maps_and_grows_with_the_methods(vit):
    one = vit.chance[0]
    orders = tuple(
        dataclasses.replace(one, deletion=torch.zeros(3), insertion=torch.full((3,), area))
        for area in (0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.3, 0.3)
    )
    limits = [
        dataclasses.replace(vit, chance=orders, methods=dict.fromkeys(names, one)).chance_limit
        for names in ("a", "abc")
    ]
    spread = (0.1 / 7) ** 0.5 * (1 + 1 / 8) ** 0.5
    assert abs(limits[0] - (0.3 + 1.895 * spread)) < 1e-4
    assert abs(limits[1] - (0.3 + 2.642 * spread)) < 1e-4


BAD = [
    ({"target": "cta"}, "there is no class 'cta'; did you mean 'cat'?"),
    ({"target": 7}, "there is no class 7: the model has 7 classes, indexed 0 to 6"),
    ({"methods": ["rolout"]}, "unknown method 'rolout'; did you mean 'rollout'?"),
    ({"methods": ["random"]}, "random is only the control for other methods"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(image, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        explain_image(named("vit_tiny_16"), image, **options)


def test_bad_images_and_models(tmp_path, image):
    model = named("vit_tiny_16")
    (tmp_path / "broken.jpg").write_text("no image")
    Image.new("RGB", (20, 9)).save(tmp_path / "small.png")
    for name, message in (
        ("nowhere.jpg", "nowhere.jpg: there is no such file"),
        ("broken.jpg", "broken.jpg: not an image"),
        ("small.png", "small.png: 20×9 pixels is smaller than one patch"),
    ):
        with pytest.raises(ValueError, match=message):
            explain_image(model, tmp_path / name)
    with pytest.raises(ValueError, match="rollout needs attention between tokens"):
        explain_image(named("resnet18"), image, methods=["rollout"])
    with pytest.raises(ValueError, match="no classifier"):
        explain_image(vt.create_model("dinov2_small_14", depth=1, image_size=28), image)


def test_classes_by_name_or_number():
    model = named("vit_tiny_16")
    assert [resolve_class(model, word) for word in ("bee", " CAT ", "3", 4, "猫")] == [1, 2, 3, 4, 6]
    with pytest.raises(ValueError, match="have no names"):
        resolve_class(tiny("vit_tiny_16"), "cat")


def same(listed, tensor):
    """Nested lists that hold the numbers of a tensor, to four significant digits, with None for NaN."""
    flat = [np.nan if value is None else value for value in np.asarray(listed, dtype=object).flatten()]
    assert np.shape(np.asarray(listed, dtype=object)) == tuple(tensor.shape)
    return np.allclose(flat, tensor.flatten().numpy(), rtol=6e-4, atol=0, equal_nan=True)


def test_json_holds_the_numbers_of_the_evidence(vit):
    exported = json.loads(json.dumps(vit.to_json(), allow_nan=False))
    assert exported == vit.to_json()
    assert (exported["version"], exported["model"], exported["image"]) == (1, "one", "a <b>.png")
    assert (exported["image_size"], exported["grid"]) == ([64, 64], [4, 4])
    assert same(exported["answer"]["probabilities"], vit.answer.probabilities)
    assert exported["answer"]["target"] == exported["answer"]["best"][0]
    assert [one["name"] for one in exported["answer"]["best"]] == [name for name, _ in vit.answer.best()]
    assert list(exported["methods"]) == list(vit.methods)
    for name, one in vit.methods.items():
        method = exported["methods"][name]
        assert same(method["map"], one.heat)
        assert same(method["deletion"], one.deletion)
        assert same(method["insertion"], one.insertion)
        assert method["faithfulness"] == pytest.approx(one.faithfulness, rel=6e-4)
        assert method["beats_chance"] == vit.beats_chance(name)
    assert exported["chance"]["limit"] == pytest.approx(vit.chance_limit, rel=6e-4)
    assert exported["trusted"] == vit.trusted
    for name, layer in vit.layers.items():
        for field in ("heads", "view", "distance", "entropy", "rank"):
            assert same(exported["layers"][name][field], getattr(layer, field))
    assert list(exported["rollout"]) == list(vit.rollout)
    assert all(same(exported["norms"][name]["lengths"], lengths) for name, lengths in vit.norms.lengths.items())
    assert exported["lens"]["blocks.1"]["best"] == exported["answer"]["best"]


def test_json_is_small_and_gives_reasons_for_what_is_missing(vit, resnet):
    """Each number once, in a few digits: no pixels, no matrices of all tokens."""
    assert len(json.dumps(vit.to_json())) < 20_000
    exported = resnet.to_json()
    assert (exported["layers"], exported["rollout"]) == ({}, {})
    assert "has no attention" in exported["reasons"]["attention"]


def test_json_has_no_nan_and_keeps_points_and_outliers(vit):
    layer = next(iter(vit.layers.values()))
    points = PointEvidence(torch.rand(2, 3, 2), torch.rand(2, 3))
    changed = dataclasses.replace(layer, rank=torch.tensor([np.nan, 0.123456]), points=points).to_json()
    assert changed["rank"] == [None, 0.1235]
    assert same(changed["points"]["points"], points.points)
    norms = TokenNorms({"blocks.0": torch.tensor([1.0, 9.0])}, {"blocks.0": torch.tensor([False, True])})
    assert norms.to_json() == {"blocks.0": {"lengths": [1.0, 9.0], "outliers": [1]}}
