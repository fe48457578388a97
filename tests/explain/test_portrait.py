"""A portrait holds evidence for every kind of model, and its page says what applies, what does not and why."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from tests.explain.test_report import Page
from tests.family import tiny
from tests.shared import DEIT_TINY, SHARED, need_shared
from vitreous.explain import portrait_sections
from vitreous.explain.portrait_page import Entry, write_index
from vitreous.explain.portrait_sections import SECTIONS, verdict
from vitreous.explain.sitting import class_number
from vitreous.explain.sitting import portrait as take
from vitreous.weights.load import load

CLASSES = ["ant", "Bee", "cat", "$x_", "<script>eel</script>", "fox", "猫"]


def named(name, **overrides):
    model = tiny(name, **overrides)
    model.name_classes(CLASSES)
    return model.eval()


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "a <b>.png"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def vit(picture):
    return take(named("vit_tiny_16"), picture, quick=True, name="one")


@pytest.fixture(scope="module")
def resnet(picture):
    return take(named("resnet18"), picture, quick=True, name="two")


@pytest.fixture(scope="module")
def both(vit, resnet, tmp_path_factory):
    """The page of two models."""
    path = tmp_path_factory.mktemp("pages") / "page.html"
    vit.save(path, beside=resnet)
    assert path.stat().st_size < 3_000_000
    return Page(path.read_text())


def absent(page):
    return [attributes for _, attributes in page.tags if attributes.get("class") == "missing"]


@pytest.mark.parametrize(
    ("name", "layers", "missing"),
    [
        pytest.param("swin_tiny", 8, {"Points that it reads", "Positions"}, marks=pytest.mark.slow),
        ("dat_tiny", 8, {"Positions"}),
        ("xcit_nano_12_16", 1, {"Rollout through depth", "One patch's view", "Points that it reads", "Positions"}),
        ("mobilevit_xxs", 3, {"Points that it reads", "Positions"}),
    ],
)
def test_every_kind_of_model_shows_what_it_has(picture, monkeypatch, name, layers, missing):
    narrow = {"dims": (24, 48, 96, 192)} if name in ("swin_tiny", "dat_tiny") else {}
    portrait = take(named(name, **narrow), picture, methods=["gradient rollout"], quick=True)
    assert len(portrait.layers) == layers
    assert portrait.norms.lengths
    drawn = []
    monkeypatch.setattr(
        portrait_sections, "as_drawing", lambda figure, key, alt: drawn.append(alt) or f"<svg>{key}</svg>"
    )
    reasons = {}
    for part in SECTIONS:
        try:
            assert part.draw(portrait, "0")
        except ValueError as error:
            reasons[part.title] = str(error)
    assert set(reasons) - {"What it would say if it stopped here"} == missing
    assert len(drawn) == len(SECTIONS) - 1 - len(reasons)
    assert all(drawn)


def test_two_models_side_by_side(both, vit, resnet, tmp_path):
    titles = [part.title for part in SECTIONS]
    assert [word for word in both.words if word in titles] == titles
    assert both.words.count("one") == both.words.count("two") == len(SECTIONS)
    assert len(absent(both)) == 1 + 7
    assert "This model has no attention" in both.text
    other = dataclasses.replace(resnet, picture="another")
    with pytest.raises(ValueError, match="compared on the same picture"):
        vit.save(tmp_path / "page.html", beside=other)


def test_the_page_needs_nothing_but_itself_and_trusts_no_name(both):
    assert not {"script", "link", "iframe"} & {tag for tag, _ in both.tags}
    assert "a <b>.png" in both.text
    names = [attributes["id"] for _, attributes in both.tags if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in both.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("data:", "#")), f"<{tag} {name}={value}>"
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes["aria-label"]
            assert attributes["role"] == "img"


@pytest.mark.parametrize("target", range(7))
def test_classes_may_have_any_name(vit, target):
    answer = dataclasses.replace(vit.answer, target=target)
    lens = {name: torch.eye(7)[target] for name in vit.lens}
    portrait = dataclasses.replace(vit, answer=answer, lens=lens)
    page = Page(
        f"<div>{portrait_sections.draw_lens(portrait, '0')}{portrait_sections.draw_answer(portrait, '0')}</div>"
    )
    assert page.words.count(CLASSES[target][:18]) >= 1 or CLASSES[target][:17] in page.text


def test_a_portrait_holds_what_the_model_computed(picture):
    model = named("vit_tiny_16")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    told = []
    portrait = take(model, picture, progress=told.append)
    assert portrait.image.shape == (3, 64, 64)
    assert portrait.image.dtype == torch.uint8
    assert abs(sum(share for _, share in portrait.answer.best(7)) - 1) < 1e-5
    assert portrait.answer.best(1)[0] == (portrait.answer.target_name, portrait.answer.target_probability)
    for one in (*portrait.methods.values(), *portrait.chance):
        assert one.heat.shape == (4, 4)
        assert one.deletion.shape == one.insertion.shape == (21,)
        assert abs(one.deletion[0] - portrait.answer.target_probability) < 1e-5
        assert abs(one.insertion[-1] - portrait.answer.target_probability) < 1e-5
    assert torch.allclose(portrait.lens["blocks.1"], portrait.answer.probabilities, atol=1e-5)
    assert told == [*portrait.methods, "random", "layers", "logit lens"]
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_random_orders_differ_and_are_the_same_next_time(picture):
    model = named("vit_tiny_16")
    first, second = (take(model, picture, methods=["rollout"]).chance for _ in range(2))
    assert not torch.equal(first[0].heat, first[1].heat)
    assert all(torch.equal(a.heat, b.heat) for a, b in zip(first, second, strict=True))


def test_quick_asks_less_but_never_nothing(vit, resnet):
    assert set(vit.methods) == {"class attention", "mean attention", "rollout", "gradient rollout"}
    assert set(resnet.methods) == {"occlusion", "integrated gradients"}


def test_the_verdict_follows_the_numbers(vit):
    rollout = vit.methods["rollout"]
    good = dataclasses.replace(rollout, deletion=torch.zeros(11), insertion=torch.ones(11))
    poor = dataclasses.replace(rollout, deletion=torch.ones(11), insertion=torch.zeros(11))
    told = verdict(dataclasses.replace(vit, methods={"a": poor, "b": good}))
    assert told.startswith("For this picture trust b most: its faithfulness is +1.00 (in 95 of 100 cases the best")
    assert told.endswith("No better than chance here: a.")
    assert verdict(dataclasses.replace(vit, methods={"a": poor})).startswith("Trust none of these maps")


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


def test_the_index_links_to_its_pages(tmp_path, vit):
    write_index(tmp_path / "i.html", ["one"], [Entry.of("i/a <b>.html", [vit])], {"bad.jpg": "the file is empty"})
    page = Page((tmp_path / "i.html").read_text())
    assert [attributes["href"] for tag, attributes in page.tags if tag == "a"] == ["i/a%20%3Cb%3E.html"]
    assert "bad.jpg was left out: the file is empty." in page.text


def test_grey_models_with_registers_that_pool_their_cells():
    model = named("vit_tiny_16", num_channels=1, num_registers=3, pool="mean")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    portrait = take(model, picture, quick=True)
    assert portrait.picture == "the picture"
    assert next(iter(portrait.layers.values())).num_prefix == 4
    assert portrait_sections.draw_methods(portrait, "0")


BAD = [
    ({"target": "cta"}, "there is no class 'cta'; did you mean 'cat'?"),
    ({"target": 7}, "there is no class 7: the model has 7, numbered from 0 to 6"),
    ({"methods": ["rolout"]}, "there is no method 'rolout'; did you mean 'rollout'?"),
    ({"methods": ["random"]}, "random is what the others are measured against"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_questions(picture, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        take(named("vit_tiny_16"), picture, **options)


def test_bad_pictures_and_models(tmp_path, picture):
    model = named("vit_tiny_16")
    (tmp_path / "broken.jpg").write_text("no picture")
    Image.new("RGB", (20, 9)).save(tmp_path / "small.png")
    for name, message in (
        ("nowhere.jpg", "nowhere.jpg: there is no such file"),
        ("broken.jpg", "broken.jpg: not a picture"),
        ("small.png", "small.png: 20×9 pixels are fewer than one patch"),
    ):
        with pytest.raises(ValueError, match=message):
            take(model, tmp_path / name)
    with pytest.raises(ValueError, match="rollout needs attention between tokens"):
        take(named("resnet18"), picture, methods=["rollout"])
    with pytest.raises(ValueError, match="no classifier"):
        take(vt.create_model("dinov2_small_14", depth=1, image_size=28), picture)


def test_classes_by_name_or_number():
    model = named("vit_tiny_16")
    assert [class_number(model, word) for word in ("bee", " CAT ", "3", 4, "猫")] == [1, 2, 3, 4, 6]
    with pytest.raises(ValueError, match="have no names"):
        class_number(tiny("vit_tiny_16"), "cat")


@pytest.mark.slow
def test_a_real_model_and_a_real_photo(tmp_path):
    need_shared()
    model = load(DEIT_TINY, model="deit_tiny_16")
    portrait = take(model, SHARED / "weights" / "images" / "n02123045_tabby.JPEG")
    assert portrait.answer.best(1)[0][0] in ("tabby", "tiger cat", "Egyptian cat")
    assert portrait.trusted is not None
    portrait.save(tmp_path / "page.html")
    assert 100_000 < (tmp_path / "page.html").stat().st_size < 3_000_000
