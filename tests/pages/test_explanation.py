"""The page of an explanation shows what applies to a model, and the reason for what does not."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from tests.explain.explained import CLASSES, named, photo
from tests.pages.parser import Page
from tests.shared import DEIT_TINY, SHARED, need_shared
from vitreous.explain.explainer import explain as explain_image
from vitreous.pages import explanation_sections
from vitreous.pages.explanation import IndexEntry, write_index
from vitreous.pages.explanation_sections import SECTIONS, verdict
from vitreous.weights.load import load


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return photo(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def vit(image):
    return explain_image(named("vit_tiny_16"), image, quick=True, name="one")


@pytest.fixture(scope="module")
def resnet(image):
    return explain_image(named("resnet18"), image, quick=True, name="two")


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
        pytest.param(
            "swin_tiny", 8, {"Deformable sampling points", "Position embedding similarity"}, marks=pytest.mark.slow
        ),
        ("dat_tiny", 8, {"Position embedding similarity"}),
        (
            "xcit_nano_12_16",
            1,
            {
                "Attention rollout",
                "Attention of one patch",
                "Deformable sampling points",
                "Position embedding similarity",
            },
        ),
        ("mobilevit_xxs", 3, {"Deformable sampling points", "Position embedding similarity"}),
    ],
)
def test_every_kind_of_model_shows_what_applies(image, monkeypatch, name, layers, missing):
    narrow = {"dims": (24, 48, 96, 192)} if name in ("swin_tiny", "dat_tiny") else {}
    explanation = explain_image(named(name, **narrow), image, methods=["gradient rollout"], quick=True)
    assert len(explanation.layers) == layers
    assert explanation.norms.lengths
    drawn = []
    monkeypatch.setattr(
        explanation_sections, "inline_svg", lambda figure, key, alt: drawn.append(alt) or f"<svg>{key}</svg>"
    )
    reasons = {}
    for part in SECTIONS:
        try:
            assert part.draw(explanation, "0")
        except ValueError as error:
            reasons[part.title] = str(error)
    assert set(reasons) - {"Logit lens"} == missing
    assert len(drawn) == len(SECTIONS) - 1 - len(reasons)
    assert all(drawn)


def test_two_models_side_by_side(both, vit, resnet, tmp_path):
    titles = [part.title for part in SECTIONS]
    assert [word for word in both.words if word in titles] == titles
    assert both.words.count("one") == both.words.count("two") == len(SECTIONS)
    assert len(absent(both)) == 1 + 7
    assert "This model has no attention" in both.text
    other = dataclasses.replace(resnet, title="another")
    with pytest.raises(ValueError, match="must be of the same image"):
        vit.save(tmp_path / "page.html", beside=other)


def test_the_page_is_self_contained_and_escapes_names(both):
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
    explanation = dataclasses.replace(vit, answer=answer, lens=lens)
    page = Page(
        f"<div>{explanation_sections.draw_lens(explanation, '0')}"
        f"{explanation_sections.draw_answer(explanation, '0')}</div>"
    )
    assert page.words.count(CLASSES[target][:18]) >= 1 or CLASSES[target][:17] in page.text


def test_the_verdict_follows_the_numbers(vit):
    rollout = vit.methods["rollout"]
    good = dataclasses.replace(rollout, deletion=torch.zeros(11), insertion=torch.ones(11))
    poor = dataclasses.replace(rollout, deletion=torch.ones(11), insertion=torch.zeros(11))
    text = verdict(dataclasses.replace(vit, methods={"a": poor, "b": good}))
    assert text.startswith("The most faithful map of this image is b: +1.00 (95 % limit of the best of 2 random maps")
    assert text.endswith("No better than random: a.")
    assert verdict(dataclasses.replace(vit, methods={"a": poor})).startswith("None of these maps is more faithful")


def test_the_index_links_to_its_pages(tmp_path, vit):
    write_index(tmp_path / "i.html", ["one"], [IndexEntry.of("i/a <b>.html", [vit])], {"bad.jpg": "the file is empty"})
    page = Page((tmp_path / "i.html").read_text())
    assert [attributes["href"] for tag, attributes in page.tags if tag == "a"] == ["i/a%20%3Cb%3E.html"]
    assert "bad.jpg was skipped: the file is empty." in page.text


def test_gray_models_with_registers_that_pool_their_cells():
    model = named("vit_tiny_16", num_channels=1, num_registers=3, pool="mean")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    explanation = explain_image(model, image, quick=True)
    assert explanation.title == "the image"
    assert next(iter(explanation.layers.values())).num_prefix == 4
    assert explanation_sections.draw_methods(explanation, "0")


@pytest.mark.slow
def test_a_real_model_and_a_real_photo(tmp_path):
    need_shared()
    model = load(DEIT_TINY, model="deit_tiny_16")
    explanation = explain_image(model, SHARED / "weights" / "images" / "n02123045_tabby.JPEG")
    assert explanation.answer.best(1)[0][0] in ("tabby", "tiger cat", "Egyptian cat")
    assert explanation.trusted is not None
    explanation.save(tmp_path / "page.html")
    assert 100_000 < (tmp_path / "page.html").stat().st_size < 3_000_000
