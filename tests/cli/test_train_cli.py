"""``vitreous train`` and ``vitreous evaluate`` from the command line."""

import json

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from vitreous.cli import main
from vitreous.cli.train import apply_options
from vitreous.runs.recipe import find_recipe
from vitreous.train.optim import SGD, AdamW, Muon
from vitreous.train.schedule import Cosine, Linear

QUICKSTART = Muon(lr=2e-3, matrix_lr=0.02)
SMALL = ("--train.steps", "3", "--train.batch-size", "4", "--data.limit", "16", "--train.device", "cpu")


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def photos(tmp_path):
    draws = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            pixels = draws.integers(0, 256, (50, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.jpg")
    return tmp_path / "photos"


def test_a_folder_of_photos_becomes_a_model(capsys, tmp_path, photos):
    code, out, err = run(capsys, "train", "--data", photos, "--output", tmp_path / "run", *SMALL)
    assert code == 0, err
    assert "Settings chosen for" in out
    assert "because" in out
    assert "no validation split" in err
    model = vt.load(tmp_path / "run" / "model.safetensors")
    assert model.spec.labels.names == ("cat", "dog")
    code, out, _ = run(capsys, "evaluate", tmp_path / "run" / "model.safetensors", "--data", photos)
    assert code == 0
    assert "accuracy" in out
    assert "most confused with" in out


def test_names_that_look_like_markup_are_printed_literally(capsys, tmp_path, photos):
    """Class and file names in square brackets are not interpreted as rich markup."""
    (photos / "cat").rename(photos / "[bold]")
    rows = [f"{path.parent.name}/{path.name},{path.parent.name[:-1]}[/]" for path in sorted(photos.glob("*/*.jpg"))]
    (photos / "[table].csv").write_text("\n".join(["path,label", *rows]))
    output = tmp_path / "[x] [red]"
    code, out, err = run(capsys, "train", "--data", photos / "[table].csv", "--output", output, *SMALL)
    assert code == 0, err
    assert "[table].csv" in out
    assert f"{output}/model.safetensors" in out
    inspect = ("data", "inspect", photos, "--output", tmp_path / "x.png")
    for words in (inspect, ("evaluate", output, "--data", photos / "[table].csv")):
        code, out, err = run(capsys, *words)
        assert code == 0, err
        assert "[bold" in out


def test_options_are_typed_and_reach_the_run(capsys, tmp_path):
    words = (
        "train",
        "quickstart",
        "--train.optimizer.lr",
        "5e-4",
        "--model.dim",
        "32",
        "--output",
        tmp_path / "run",
        *SMALL,
    )
    assert run(capsys, *words)[0] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["train"]["optimizer"] == {**QUICKSTART.to_json(), "lr": 5e-4}
    assert config["model"]["dim"] == 32


@pytest.mark.parametrize(
    ("words", "optimizer", "schedule"),
    [
        ("--train.optimizer sgd lr=0.1 momentum=0.8", SGD(lr=0.1, momentum=0.8), Cosine()),
        ("--train.optimizer.momentum 0.8 --train.optimizer sgd", SGD(momentum=0.8), Cosine()),
        ("--train.optimizer.lr=.5", QUICKSTART.override(lr=0.5), Cosine()),
        ("--train.optimizer.betas 0.8 0.9", QUICKSTART.override(betas=(0.8, 0.9)), Cosine()),
        (
            "--train.schedule.warmup 0.1 --train.optimizer.matrix-lr 1e-2",
            Muon(lr=2e-3, matrix_lr=0.01),
            Cosine(warmup=0.1),
        ),
        ("--train.schedule linear final=0.5", QUICKSTART, Linear(final=0.5)),
        ("--train.lr 5e-4 --train.muon_lr .03", Muon(lr=5e-4, matrix_lr=0.03), Cosine()),
        ("--train.lr 0.1 --train.optimiser sgd --train.momentum 0.7", SGD(lr=0.1, momentum=0.7), Cosine()),
        ("--train.optimiser adamw --train.betas 0.8 0.9", AdamW(lr=2e-3, betas=(0.8, 0.9)), Cosine()),
        ("--train.final-lr=0.1 --train.warmup 0.2 --train.schedule linear", QUICKSTART, Linear(warmup=0.2, final=0.1)),
        ("--train.weight-decay 0 --train.momentum 0.5", QUICKSTART.override(weight_decay=0), Cosine()),
        ("--train.steps 7", QUICKSTART, Cosine()),
    ],
)
def test_optimizers_and_schedules_are_parsed(words, optimizer, schedule):
    train = apply_options(find_recipe("quickstart"), words.split(), "vitreous train").train
    assert (train.optimizer, train.schedule) == (optimizer, schedule)


def test_options_of_a_mixer_can_be_changed_one_by_one():
    model = apply_options(find_recipe("quickstart"), ["--model.mixer", "window"], "vitreous train").model
    words = ["--model.mixer", "window", "--model.mixer.size", "3"]
    changed = apply_options(find_recipe("quickstart"), words, "vitreous train").model
    assert changed == model.override(mixer=model.mixer.override(size=3))
    assert changed != model


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--train.lr 5e-4", "--train.lr is deprecated; write --train.optimizer.lr 5e-4"),
        ("--train.muon-lr=0.1", "--train.muon-lr is deprecated; write --train.optimizer.matrix-lr 0.1"),
        (
            "--train.optimiser sgd",
            "--train.optimiser is deprecated; write --train.optimizer sgd lr=0.002 weight_decay=0.05 momentum=0.9",
        ),
        ("--train.momentum 0.5", "--train.momentum is deprecated and was ignored: muon has no momentum"),
    ],
)
def test_deprecated_options_get_a_note(capsys, words, note):
    apply_options(find_recipe("quickstart"), words.split(), "vitreous train")
    assert capsys.readouterr().err == f"note: {note}\n"


def test_current_options_get_no_note(capsys):
    apply_options(find_recipe("quickstart"), ["--train.optimizer", "sgd", "lr=0.1"], "vitreous train")
    assert capsys.readouterr().err == ""


def test_a_second_start_needs_resume(capsys, tmp_path):
    words = ("train", "quickstart", "--output", tmp_path / "run", *SMALL)
    assert run(capsys, *words)[0] == 0
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "already holds a run; add --resume" in err
    assert run(capsys, *words, "--resume")[0] == 0


def test_smoke(capsys, tmp_path):
    assert run(capsys, "train", "cifar10_vit", "--smoke", "--output", tmp_path / "run")[0] == 0


def test_help_lists_the_recipes(capsys):
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    for word in ("cifar10_vit", "imagenet_vit", "--resume", "torchrun"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "nothing"), "there is no recipe 'nothing'"),
        (("train", "--smoke"), "give a recipe or --data"),
        (("train", "--data", "no/such/place"), "no/such/place"),
        (("train", "cifar10_vit", "--data", "no/such/place"), "no/such/place"),
        (("train", "quickstart", "--model", "vit_tiny_16"), "a recipe defines its own model"),
        (("train", "quickstart", "--train.optimizer", "adam"), "got 'adam'; did you mean 'adamw'?"),
        (("train", "quickstart", "--train.optimizer", "sgd", "0.1"), "options of sgd must be written as name=value"),
        (("train", "quickstart", "--train.optimizer.lr"), "--train.optimizer.lr needs a value"),
        (("evaluate", "no.safetensors", "--data", "shapes"), "there is no weights file"),
    ],
)
def test_errors_are_one_line(capsys, words, message):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_misspelled_optimizer_option_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["train", "quickstart", "--train.optimizer.lrr", "3"])
    assert "Muon has no option 'lrr'; did you mean 'lr'?" in capsys.readouterr().err


def test_fine_tuning_reports_what_was_loaded(capsys, tmp_path, photos):
    start = vt.create_model("vit_tiny_16", image_size=48, patch_size=16, dim=32, depth=2, num_heads=2)
    vt.save(start, tmp_path / "start.safetensors")
    words = ("train", "--data", photos, "--weights", tmp_path / "start.safetensors", "--output", tmp_path / "run")
    code, out, err = run(capsys, *words, *SMALL)
    assert code == 0, err
    assert "layer decay" in out
    assert "re-initialized" in err
    assert vt.load(tmp_path / "run" / "model.safetensors").config.dim == 32
