"""An explanation holds what the model computed, for every kind of model, and judges maps by chance."""

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
from vitreous.explain.explainer import class_number
from vitreous.explain.explainer import explain as take
from vitreous.explain.layers import Norms, PointsSeen


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return photo(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def vit(image):
    return take(named("vit_tiny_16"), image, quick=True, name="one")


@pytest.fixture(scope="module")
def resnet(image):
    return take(named("resnet18"), image, quick=True, name="two")


def test_a_explanation_holds_what_the_model_computed(image):
    model = named("vit_tiny_16")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    told = []
    explanation = take(model, image, progress=told.append)
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
    assert told == [*explanation.methods, "random", "layers", "logit lens"]
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_random_orders_differ_and_are_the_same_next_time(image):
    model = named("vit_tiny_16")
    first, second = (take(model, image, methods=["rollout"]).chance for _ in range(2))
    assert not torch.equal(first[0].heat, first[1].heat)
    assert all(torch.equal(a.heat, b.heat) for a, b in zip(first, second, strict=True))


def test_quick_asks_less_but_never_nothing(vit, resnet):
    assert set(vit.methods) == {"class attention", "mean attention", "rollout", "gradient rollout"}
    assert set(resnet.methods) == {"occlusion", "integrated gradients"}


def test_chance_is_reckoned_from_random_orders_and_harder_for_more_methods(vit):
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
    ({"target": 7}, "there is no class 7: the model has 7, numbered from 0 to 6"),
    ({"methods": ["rolout"]}, "there is no method 'rolout'; did you mean 'rollout'?"),
    ({"methods": ["random"]}, "random is what the others are measured against"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_questions(image, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        take(named("vit_tiny_16"), image, **options)


def test_bad_images_and_models(tmp_path, image):
    model = named("vit_tiny_16")
    (tmp_path / "broken.jpg").write_text("no image")
    Image.new("RGB", (20, 9)).save(tmp_path / "small.png")
    for name, message in (
        ("nowhere.jpg", "nowhere.jpg: there is no such file"),
        ("broken.jpg", "broken.jpg: not an image"),
        ("small.png", "small.png: 20×9 pixels are fewer than one patch"),
    ):
        with pytest.raises(ValueError, match=message):
            take(model, tmp_path / name)
    with pytest.raises(ValueError, match="rollout needs attention between tokens"):
        take(named("resnet18"), image, methods=["rollout"])
    with pytest.raises(ValueError, match="no classifier"):
        take(vt.create_model("dinov2_small_14", depth=1, image_size=28), image)


def test_classes_by_name_or_number():
    model = named("vit_tiny_16")
    assert [class_number(model, word) for word in ("bee", " CAT ", "3", 4, "猫")] == [1, 2, 3, 4, 6]
    with pytest.raises(ValueError, match="have no names"):
        class_number(tiny("vit_tiny_16"), "cat")


def same(listed, tensor):
    """Nested lists that hold the numbers of a tensor, to four significant digits, with None for NaN."""
    flat = [np.nan if value is None else value for value in np.asarray(listed, dtype=object).flatten()]
    assert np.shape(np.asarray(listed, dtype=object)) == tuple(tensor.shape)
    return np.allclose(flat, tensor.flatten().numpy(), rtol=6e-4, atol=0, equal_nan=True)


def test_json_holds_the_numbers_of_the_evidence(vit):
    told = json.loads(json.dumps(vit.to_json(), allow_nan=False))
    assert told == vit.to_json()
    assert (told["version"], told["model"], told["image"]) == (1, "one", "a <b>.png")
    assert (told["image_size"], told["grid"]) == ([64, 64], [4, 4])
    assert same(told["answer"]["probabilities"], vit.answer.probabilities)
    assert told["answer"]["target"] == told["answer"]["best"][0]
    assert [one["name"] for one in told["answer"]["best"]] == [name for name, _ in vit.answer.best()]
    assert list(told["methods"]) == list(vit.methods)
    for name, one in vit.methods.items():
        method = told["methods"][name]
        assert same(method["map"], one.heat)
        assert same(method["deletion"], one.deletion)
        assert same(method["insertion"], one.insertion)
        assert method["faithfulness"] == pytest.approx(one.faithfulness, rel=6e-4)
        assert method["beats_chance"] == vit.beats_chance(name)
    assert told["chance"]["limit"] == pytest.approx(vit.chance_limit, rel=6e-4)
    assert told["trusted"] == vit.trusted
    for name, layer in vit.layers.items():
        for field in ("heads", "view", "distance", "entropy", "rank"):
            assert same(told["layers"][name][field], getattr(layer, field))
    assert list(told["rollout"]) == list(vit.rollout)
    assert all(same(told["norms"][name]["lengths"], lengths) for name, lengths in vit.norms.lengths.items())
    assert told["lens"]["blocks.1"]["best"] == told["answer"]["best"]


def test_json_is_small_and_says_what_is_missing(vit, resnet):
    """Each number once, in a few digits: no pixels, no matrices of all tokens."""
    assert len(json.dumps(vit.to_json())) < 20_000
    told = resnet.to_json()
    assert (told["layers"], told["rollout"]) == ({}, {})
    assert "has no attention" in told["reasons"]["attention"]


def test_json_knows_no_nan_and_keeps_points_and_outliers(vit):
    layer = next(iter(vit.layers.values()))
    points = PointsSeen(torch.rand(2, 3, 2), torch.rand(2, 3))
    changed = dataclasses.replace(layer, rank=torch.tensor([np.nan, 0.123456]), points=points).to_json()
    assert changed["rank"] == [None, 0.1235]
    assert same(changed["points"]["points"], points.points)
    norms = Norms({"blocks.0": torch.tensor([1.0, 9.0])}, {"blocks.0": torch.tensor([False, True])})
    assert norms.to_json() == {"blocks.0": {"lengths": [1.0, 9.0], "outliers": [1]}}
