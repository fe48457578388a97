"""Every recipe runs; recipes are found by name and path; unsuitable data is a clear error."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from tests.train.runs import RECIPE
from vitreous.runs.choose import choose_recipe
from vitreous.runs.preflight import preflight
from vitreous.runs.prepare import prepare_run
from vitreous.runs.recipe import find_recipe, list_recipes
from vitreous.runs.run import train
from vitreous.train.optim import AdamW
from vitreous.train.schedule import Cosine

LARGE = {"imagenet_vit", "imagenet_resnet50"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in list_recipes()]
)
def test_smoke_run_of_every_recipe(name, tmp_path):
    outcome = train(find_recipe(name).smoke(), tmp_path)
    assert outcome.images == 8
    assert all(np.isfinite(array).all() for array in outcome.meter.arrays().values())
    assert len(outcome.meter) == 16
    assert json.loads((tmp_path / "config.json").read_text())["train"]["steps"] == 2


def test_every_recipe_has_a_summary_and_a_command():
    from importlib import import_module

    for name, summary in list_recipes().items():
        text = import_module(f"vitreous.recipes.{name}").__doc__
        assert summary, name
        assert f"vitreous train {name}" in text, f"{name} does not give its command"


def test_imagenet_recipes_follow_the_papers():
    vit, resnet = find_recipe("imagenet_vit").train, find_recipe("imagenet_resnet50").train
    assert (vit.optimizer, vit.batch_size, vit.epochs) == (AdamW(lr=1e-3, weight_decay=0.05), 4096, 300)
    assert (resnet.optimizer.name, resnet.epochs) == ("sgd", 90)


def test_a_recipe_in_a_user_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tests.train.runs import RECIPE as recipe\n")
    assert find_recipe(str(file)) == RECIPE
    file.write_text("x = 1\n")
    with pytest.raises(ValueError, match="defines no `recipe = Recipe"):
        find_recipe(str(file))


@pytest.mark.parametrize(
    ("name", "message"),
    [("cifar10_vitt", "did you mean 'cifar10_vit'"), ("nowhere/x.py", "there is no recipe file")],
)
def test_unknown_recipes(name, message):
    with pytest.raises(ValueError, match=message):
        find_recipe(name)


def folder_of(path, classes=("cat", "dog"), number=12, size=(40, 30)):
    draws = np.random.default_rng(0)
    for name in classes:
        (path / name).mkdir(parents=True)
        for index in range(number):
            pixels = draws.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index}.png")
    return path


def on(path, **data):
    return replace(RECIPE, data=replace(RECIPE.data, source=str(path), limit=0, **data), train=short())


def short():
    return replace(RECIPE.train, steps=2, batch_size=4)


@pytest.mark.parametrize("memory", ["yes", "no"])
def test_a_corrupt_image_among_many_is_counted(tmp_path, memory):
    folder = folder_of(tmp_path / "photos")
    (folder / "cat" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    recipe = on(folder, memory=memory)
    recipe = replace(recipe, train=replace(recipe.train, steps=12))
    outcome = train(recipe, tmp_path / "run")
    notes = prepare_run(recipe).notes
    assert any("could not be read" in note for note in notes) if memory == "yes" else "3.png" in str(outcome.unreadable)


def one_class(path):
    folder_of(path, classes=("cat",))


def other_classes(path):
    folder_of(path / "train")
    folder_of(path / "val", classes=("cat", "cow"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "empty|no images|no class"),
        (one_class, "one class|two classes"),
        (other_classes, "cow|dog"),
    ],
)
def test_bad_folders(tmp_path, make, message):
    make(tmp_path / "photos")
    with pytest.raises(ValueError, match=message):
        train(on(tmp_path / "photos"), tmp_path / "run")


def test_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to .* choose another output"):
        train(on("shapes", valid_share=0.1), tmp_path / "file" / "run")


def test_settings_chosen_for_images(tmp_path):
    recipe, choices = choose_recipe(str(folder_of(tmp_path / "photos", size=(100, 130))))
    assert recipe.model.image_size == (96, 96)
    assert {"model", "image size", "batch", "length", "task"} <= {choice.setting for choice in choices}
    assert all(choice.reason for choice in choices)
    assert (96 // recipe.model.patch_size[0]) ** 2 >= 64


def test_patch_size_of_a_requested_model(tmp_path):
    recipe, _ = choose_recipe(str(folder_of(tmp_path / "photos")), "vit_tiny_16")
    assert recipe.model.patch_size == (4, 4)


def test_digits_are_gray():
    recipe, _ = choose_recipe("digits")
    assert recipe.model.num_channels == 1
    assert prepare_run(recipe).model.spec.preprocess.num_channels == 1


def test_single_label_task_on_multi_label_data(tmp_path):
    folder_of(tmp_path / "photos")
    (tmp_path / "t.csv").write_text("path,a,b\nphotos/cat/0.png,1,0\nphotos/cat/1.png,0,1\nphotos/dog/1.png,1,1\n")
    with pytest.raises(ValueError, match="has several labels per image, the task needs one class per image"):
        train(on(tmp_path / "t.csv"), tmp_path / "run")


def test_fine_tuning_is_gentler(tmp_path):
    folder = str(folder_of(tmp_path / "photos"))
    fine, scratch = choose_recipe(folder, "vit_tiny_16", "some.safetensors")[0], choose_recipe(folder)[0]
    assert fine.train.layer_decay < 1
    assert fine.train.optimizer.name == "adamw"
    assert fine.train.optimizer.lr < scratch.train.optimizer.lr


def findings(recipe):
    return " ".join(map(str, preflight(recipe, prepare_run(recipe))))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": replace(RECIPE.model, patch_size=(16, 16))}, "leave 4 tokens"),
        ({"train": replace(RECIPE.train, schedule=Cosine(warmup=0.0))}, "no warm-up"),
        ({"train": replace(RECIPE.train, optimizer=AdamW(lr=0.1))}, "makes AdamW diverge"),
        ({"train": replace(RECIPE.train, ema=0.9999)}, "to forget the initial weights"),
    ],
)
def test_preflight_findings(change, expected):
    healthy = replace(RECIPE, train=replace(RECIPE.train, ema=0.0))
    assert expected in findings(replace(RECIPE, **change))
    assert expected not in findings(healthy)


def test_preflight_finds_validation_images_in_the_training_set(tmp_path):
    folder_of(tmp_path / "p" / "train")
    folder_of(tmp_path / "p" / "val", number=3)  # same seed: the first class's images are identical
    assert "validation images are also in the training set" in findings(on(tmp_path / "p"))


def test_preflight_finds_wrong_normalization():
    prepared = prepare_run(RECIPE)
    own = prepared.model.spec
    prepared.model.spec = replace(own, preprocess=replace(own.preprocess, std=(0.001, 0.001, 0.001)))
    assert any("after normalization" in str(finding) for finding in preflight(RECIPE, prepared))


def test_preflight_finds_a_high_learning_rate_for_fine_tuning(tmp_path):
    vt.save(prepare_run(RECIPE).model, tmp_path / "start.safetensors")
    gentle = replace(RECIPE.train, optimizer=AdamW(lr=5e-3))
    recipe = replace(RECIPE, weights=str(tmp_path / "start.safetensors"), train=gentle)
    assert "will destroy the pretrained features" in findings(recipe)
