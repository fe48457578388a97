"""vitreous explain: one page, an index of pages, two models, and one-line errors."""

import json

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from tests.family import tiny
from vitreous.cli import explain as command
from vitreous.cli import main
from vitreous.cli.explain import check_folder, names_of, page_names
from vitreous.pages import explanation as explanation_page
from vitreous.pages.explanation_sections import SECTIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    for name in ("vit_tiny_16", "resnet18"):
        model = tiny(name)
        model.name_classes(["ant", "bee", "cat", "dog", "eel", "fox", "gnu"])
        vt.save(model, folder / f"{name}.safetensors")
    vt.save(vt.create_model("dinov2_small_14", depth=1, image_size=28), folder / "headless.safetensors")
    (folder / "photos" / "more").mkdir(parents=True)
    for index, name in enumerate(("a.png", "b c.png", "more/a.png")):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / name)
    (folder / "photos" / "broken.jpg").write_text("no image")
    Image.new("RGB", (9, 9)).save(folder / "small.png")
    return folder


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch):
    """Only the first section: drawing the others takes seconds and is tested elsewhere."""
    monkeypatch.setattr(explanation_page, "SECTIONS", SECTIONS[:1])


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_image_gives_one_page(capsys, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "explain", folder / "vit_tiny_16.safetensors", folder / "photos" / "a.png", "--quick")
    assert code == 0
    assert out.splitlines()[-1] == "explain.html"
    assert "vit_tiny_16: " in out
    assert [path.name for path in tmp_path.iterdir()] == ["explain.html"]
    assert "Explained below: " in (tmp_path / "explain.html").read_text()


def test_a_folder_gives_an_index(capsys, folder, tmp_path):
    output = tmp_path / "all.html"
    words = (
        "explain",
        folder / "vit_tiny_16.safetensors",
        folder / "photos",
        "--output",
        output,
        "--methods",
        "class-attention",
    )
    code, out, err = run(capsys, *words)
    assert code == 0
    assert "an index of 3 pages" in out
    assert "skipped 1 of 4 files" in err
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["a-2.html", "a.html", "b_c.html"]
    index = output.read_text()
    assert index.count("<a href=") == 3
    assert all(f'href="all/{name}.html"' in index for name in ("a", "a-2", "b_c"))
    assert "broken.jpg was skipped: not an image" in index


def test_two_models(capsys, folder, tmp_path):
    words = (
        folder / "vit_tiny_16.safetensors",
        folder / "photos" / "a.png",
        "--compare",
        folder / "resnet18.safetensors",
    )
    code, out, _ = run(
        capsys,
        "explain",
        *words,
        "--target",
        "Cat",
        "--methods",
        "integrated-gradients",
        "--output",
        tmp_path / "x.html",
    )
    assert code == 0
    assert "resnet18: " in out
    page = (tmp_path / "x.html").read_text()
    assert page.count("Explained below: cat") == 2


def test_the_numbers_behind_a_page_as_json(capsys, folder, tmp_path):
    """An object for one explanation, a list for several images or models."""
    one, two = folder / "vit_tiny_16.safetensors", folder / "resnet18.safetensors"
    words = ("explain", one, folder / "photos" / "a.png", "--quick", "--output", tmp_path / "x.html")
    found = {}
    for name, more in (("one", ()), ("compared", ("--compare", two)), ("many", (folder / "photos" / "b c.png",))):
        path = tmp_path / f"{name}.json"
        given = (*words[:3], *more, *words[3:]) if name == "many" else (*words, *more)
        assert run(capsys, *given, "--json", path)[0] == 0
        found[name] = json.loads(path.read_text())
    assert found["one"]["version"] == 1
    assert found["compared"] == [found["one"], found["compared"][1]]
    assert [one["model"] for one in found["compared"]] == ["vit_tiny_16", "resnet18"]
    assert [one["image"] for one in found["many"]] == ["a.png", "b c.png"]


def test_an_interrupted_run_leaves_an_index_of_finished_pages(capsys, folder, tmp_path, monkeypatch):
    explain_image = command.explain_image

    def interrupted(model, path, **options):
        if path.name == "b c.png":
            raise KeyboardInterrupt
        return explain_image(model, path, **options)

    monkeypatch.setattr(command, "explain_image", interrupted)
    output = tmp_path / "all.html"
    words = ("explain", folder / "vit_tiny_16.safetensors", folder / "photos", "--quick", "--output", output)
    assert run(capsys, *words)[0] == 130
    assert output.read_text().count("<a href=") == 1
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["a.html"]


ERRORS = [
    (["nowhere.safetensors", "photos"], "there is no weights file nowhere.safetensors"),
    (["vit_tiny_16.safetensors", "nowhere.jpg"], "nowhere.jpg: there is no such file"),
    (["vit_tiny_16.safetensors", "photos/broken.jpg"], "broken.jpg: not an image, or damaged at its start"),
    (["vit_tiny_16.safetensors", "small.png"], "small.png: 9×9 pixels is smaller than one patch (16×16)"),
    (["headless.safetensors", "photos/a.png"], "this model has no classifier"),
    (["vit_tiny_16.safetensors", "photos", "--target", "cta"], "there is no class 'cta'; did you mean 'cat'?"),
    (["vit_tiny_16.safetensors", "photos", "--target", "9"], "there is no class 9: the model has 7 classes"),
    (["vit_tiny_16.safetensors", "photos", "--methods", "rolout"], "unknown method 'rolout'; did you mean 'rollout'?"),
    (["resnet18.safetensors", "photos", "--methods", "rollout"], "rollout needs attention between tokens"),
    (["vit_tiny_16.safetensors", "photos", "--output", "page.pdf"], "must end in .html"),
    (["vit_tiny_16.safetensors", "photos", "--output", "no/page.html"], "its folder does not exist"),
    (["vit_tiny_16.safetensors", "photos", "--json", "why.html"], "--json must end in .json, got why.html"),
    (["vit_tiny_16.safetensors", "photos", "--json", "no/why.json"], "its folder does not exist"),
    (["vit_tiny_16.safetensors", "photos", "--compare", "no.safetensors"], "there is no weights file no.safetensors"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_errors_are_one_line(capsys, folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    code, out, err = run(capsys, "explain", *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("vitreous: ")
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_models_of_the_same_name_are_distinguished_by_folder(tmp_path):
    assert names_of([tmp_path / "a.safetensors", tmp_path / "b.pth"]) == ["a", "b.pth"]
    twins = [tmp_path / "run1" / "model.safetensors", tmp_path / "run2" / "model.safetensors"]
    assert names_of(twins) == ["run1/model", "run2/model"]
    same = [tmp_path / "a" / "run" / "model.safetensors", tmp_path / "b" / "run" / "model.safetensors"]
    assert names_of(same) == [str(path) for path in same]


def test_page_names_are_unique(tmp_path):
    paths = [tmp_path / name for name in ("a.png", "b/a.jpg", "a-2.png", "ü &.png", "....png")]
    names = page_names(paths)
    assert len(set(names)) == len(paths)
    assert names[:2] == ["a.html", "a-2.html"]
    assert all("/" not in name and "&" not in name for name in names)


def test_page_folders_are_neither_files_nor_image_folders(tmp_path):
    photos = [tmp_path / "photos" / name for name in ("a.png", "b.png")]
    with pytest.raises(ValueError, match="which contains the images"):
        check_folder(tmp_path / "photos", photos)
    (tmp_path / "all").write_text("a file")
    with pytest.raises(ValueError, match="which is a file"):
        check_folder(tmp_path / "all", photos)
    check_folder(tmp_path / "why", photos)
