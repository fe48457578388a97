"""The command line end to end: output, one-line errors, resumed runs."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitreous as vt
from tests.parity import fill
from tests.shared import DEIT_TINY, SHARED, need_shared
from vitreous.cli import COMMANDS, main
from vitreous.cli import predict as predict_module


@pytest.fixture
def folder(tmp_path):
    model = fill(vt.create_model("vit_tiny_16", depth=1, image_size=32, num_classes=4))
    model.name_classes(["ant", "bee", "cat", "dog"])
    vt.save(model, tmp_path / "model.safetensors")
    (tmp_path / "photos").mkdir()
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "photos" / "broken.jpg").write_text("no image")
    Image.open(tmp_path / "photos" / "0.png").save(tmp_path / "photos" / "copy-of-0.bmp")
    return tmp_path


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_overview_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert run(capsys, "--version")[1] == f"vitreous {vt.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    try:
        code = main([*name.split(), "--help"])
    except SystemExit as caught:  # tyro exits after --help
        code = caught.code
    assert code == 0
    assert f"vitreous {name}" in capsys.readouterr().out


ERRORS = [
    (["predcit"], "unknown command 'predcit'; did you mean 'predict'?"),
    (["data"], "'data' needs a subcommand: data show"),
    (["cost"], "give at least one model name"),
    (["cost", "vit_tniy_16"], "did you mean 'vit_tiny_16'?"),
    (["cost", "vit_tiny_16", "--image-size", "4"], "smaller than patch_size"),
    (["predict", "nowhere.safetensors", "."], "there is no weights file nowhere.safetensors"),
    (["predict", "deit_tiny_16.in1k", "README.md"], "could not download deit_tiny_16.in1k"),
    (["predict", "model.safetensors", "photos/*.gif"], "no file matches 'photos/*.gif'"),
    (["predict", "model.safetensors", "photos", "--output", "x.csv"], "--output needs --format jsonl or --format csv"),
    (["predict", "model.safetensors", "photos", "--format", "csv", "--output", "no/x.csv"], "there is no folder no"),
    (["embed", "model.safetensors", "photos", "--output", "x.txt"], "must end in .npy or .parquet"),
    (["quickstart", "--steps", "0"], "steps must be positive"),
    (["data", "show", "shapes", "--output", "no/such/sheet.png"], "there is no folder no/such"),
    (["embed", "model.safetensors", "photos", "--nearest", "-1"], "--nearest must be 0 or more"),
    (["predict", "model.safetensors", "photos", "--model", "vit_tiny_16"], "already contains its model config"),
    (["cost", "vit_tiny_16", "--image-size", "0"], "image_size must be a positive int"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_errors_are_one_line(capsys, folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("vitreous: ")
    assert err.count("\n") == 1


def test_predict_table(capsys, folder):
    code, out, err = run(capsys, "predict", folder / "model.safetensors", folder / "photos")
    assert code == 0
    assert "0.png" in out
    assert "copy-of-0.bmp" in out
    assert "broken.jpg" not in out
    assert "skipped 1 of 7 files" in err
    assert "broken.jpg: not an image" in err


def test_predict_fails_if_no_image_is_readable(capsys, folder):
    code, _, err = run(capsys, "predict", folder / "model.safetensors", folder / "photos" / "broken.jpg")
    assert code == 2
    assert "the file could not be read" in err


def test_help_of_a_group(capsys):
    code, out, _ = run(capsys, "data", "--help")
    assert code == 0
    assert "data show" in out


def test_predict_json_lines_and_csv(capsys, folder):
    words = ("predict", folder / "model.safetensors", folder / "photos", "--top", 2)
    lines = [json.loads(line) for line in run(capsys, *words, "--format", "jsonl")[1].splitlines()]
    assert len(lines) == 7
    good = {line["file"]: line for line in lines if "classes" in line}
    assert len(good) == 6
    assert all(len(line["classes"]) == 2 for line in good.values())
    rows = list(csv.DictReader(io.StringIO(run(capsys, *words, "--format", "csv")[1])))
    assert [row["file"] for row in rows] == [line["file"] for line in lines]
    assert {row["file"]: row["class1"] for row in rows if row["class1"]} == {
        name: line["classes"][0] for name, line in good.items()
    }
    assert [row["skipped"] for row in rows if not row["class1"]] == ["not an image, or damaged at its start"]


@pytest.mark.parametrize("cut", [0, 1, 25])
def test_predict_resumes_after_an_interruption(capsys, folder, monkeypatch, cut):
    output = folder / "answers.jsonl"
    words = ("predict", folder / "model.safetensors", folder / "photos", "--format", "jsonl", "--batch-size", 1)
    run(capsys, *words, "--output", folder / "whole.jsonl")
    done = []
    original = predict_module.as_line

    def killed(path, one):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(path)
        return original(path, one)

    monkeypatch.setattr(predict_module, "as_line", killed)
    assert run(capsys, *words, "--output", output)[0] == 130
    assert not output.exists()
    part = folder / "answers.jsonl.part"
    if cut:  # killed while writing a line
        part.write_bytes(part.read_bytes()[:-cut])
    monkeypatch.setattr(predict_module, "as_line", original)
    code, _, err = run(capsys, *words, "--output", output)
    assert code == 0
    assert f"{3 if not cut else 2} of 7 images are already done; {4 if not cut else 5} remaining" in err
    assert output.read_bytes() == (folder / "whole.jsonl").read_bytes()
    assert not part.exists()


def test_a_journal_of_another_run_is_rejected(capsys, folder):
    (folder / "x.csv.part").write_text('{"weights": "another", "top": 5}\n')
    words = (
        "predict",
        folder / "model.safetensors",
        folder / "photos",
        "--format",
        "csv",
        "--output",
        folder / "x.csv",
    )
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "belongs to a run with other settings" in err


def test_embed_and_find_duplicates(capsys, folder):
    words = ("embed", folder / "model.safetensors", folder / "photos", "--nearest", 2)
    code, out, err = run(capsys, *words, "--output", folder / "vectors.npy")
    assert code == 0
    assert "6 embeddings of dimension 192" in err
    assert "Likely duplicates: 1" in out
    vectors, names = np.load(folder / "vectors.npy"), json.loads((folder / "vectors.json").read_text())
    assert vectors.shape == (6, 192)
    expected = vt.Predictor(folder / "model.safetensors").embed(names[2])
    assert np.allclose(vectors[2], expected, atol=1e-5)
    run(capsys, *words, "--output", folder / "vectors.parquet")
    sheet = pyarrow.parquet.read_table(folder / "vectors.parquet")
    assert sheet["file"].to_pylist() == names
    assert np.allclose(np.array(sheet["vector"].to_pylist()), vectors, atol=1e-6)
    assert not list(folder.glob("*.part"))


def test_cost_tables(capsys):
    code, out, _ = run(capsys, "cost", "vit_base_16", "--image-size", "224", "384", "1024")
    assert code == 0
    for expected in ("17.6 G", "86.6 M", "4,640 tokens", "1,090×1,090", "47% at 1024×1024", "attention", "118 MB"):
        assert expected in out
    _, out, _ = run(capsys, "cost", "vit_tiny_16", "deit_small_16", "--batch", "8", "--precision", "bf16")
    assert "deit_small_16" in out
    assert "batch of 8, bf16" in out


def test_cost_plan(capsys):
    code, out, _ = run(
        capsys, "cost", "plan", "vit_giant_14",
        "--images", "1e9", "--devices", "256", "--memory", "80e9", "--flops", "400e12",
    )  # fmt: skip
    assert code == 0
    for expected in ("It fits", "10.9 hours", "DDP", "FSDP over 256", "Assumptions: 40% MFU"):
        assert expected in out
    _, out, _ = run(
        capsys, "cost", "plan", "vit_giant_14",
        "--images", "1e9", "--devices", "4", "--memory", "1e8", "--flops", "400e12",
    )  # fmt: skip
    assert "It does not fit" in out


def test_data_show(capsys, tmp_path):
    words = ("data", "show", "shapes", "--output", tmp_path / "sheet.png", "--num-images", 5, "--occlusion", 0.3)
    assert run(capsys, *words)[0] == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert min(sheet.size) > 200


def test_quickstart_writes_a_complete_run(capsys, tmp_path):
    """A few steps: all files are written, two runs are identical, and the model predicts."""
    for name in ("a", "b"):
        code, out, _ = run(capsys, "quickstart", "--output", tmp_path / name, "--steps", 12)
        assert code == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"attention.png", "report.html", "model.safetensors", "result.json", "scenes", "log.jsonl"} <= set(files)
    assert len(list((tmp_path / "a" / "scenes").glob("* a* *.png"))) > 6
    one, other = (vt.load(tmp_path / name / "model.safetensors").state_dict() for name in ("a", "b"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    next_commands = out.split("Next:\n")[1].splitlines()
    assert [line.split()[1] for line in next_commands] == ["predict", "evaluate", "train", "cost"]
    prediction = vt.Predictor(tmp_path / "a" / "model.safetensors")(Image.new("RGB", (64, 64), "red"))
    assert prediction.best in vt.Shapes.classes


def test_quickstart_again_shows_the_same(capsys, tmp_path):
    first, again = (run(capsys, "quickstart", "--output", tmp_path / "run", "--steps", 3) for _ in range(2))
    assert first[0] == again[0] == 0
    assert "on 2,000 held-out scenes" in again[1]
    assert run(capsys, "quickstart", "--output", tmp_path / "run", "--steps", 4)[0] == 2


def test_a_closed_pipe_is_not_an_error(folder):
    command = f"{sys.executable} -m vitreous.cli predict {folder}/model.safetensors {folder}/photos --format csv | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in result.stderr


def test_real_weights_through_the_command_line(capsys):
    need_shared()
    images = SHARED / "weights" / "images"
    code, out, _ = run(capsys, "predict", DEIT_TINY, images, "--model", "deit_tiny_16")
    assert code == 0
    for name in ("Egyptian cat", "goldfish", "airliner", "black swan", "pizza", "golden retriever"):
        assert name in out


def test_models_are_listed_filtered_and_sorted(capsys):
    code, out, _ = run(capsys, "models", "swin*")
    assert code == 0
    assert "6 models" in out
    row = next(line for line in out.splitlines() if "swin_tiny" in line)
    assert " ".join(row.split()) == "swin_tiny 28.3 M 4.49 G 224 4 8 16 32 81.4 % at 224 3 2103.14030"
    code, out, _ = run(capsys, "models", "--max-parameters", "6e6", "--with-weights", "--sort", "accuracy")
    assert "deit_tiny_16" in out
    assert "vit_base_16" not in out
    assert out.index("xcit_nano_12_8") < out.index("xcit_nano_12_16")


def test_a_model_is_shown_stage_by_stage(capsys):
    code, out, _ = run(capsys, "models", "show", "pvt_v2_b0")
    assert code == 0
    assert "PVT v2: Improved Baselines" in out
    assert "2 × reduced attention" in out
    assert "32 × 56 × 56" in out
    assert "pvt_v2_b0.in1k" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("models", "swim*"), "no model matches 'swim*'"),
        (("models", "--family", "swim"), "there is no family 'swim'"),
        (("models", "show", "swin_tinny"), "did you mean 'swin_tiny'"),
    ],
)
def test_unknown_models(capsys, words, message):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert message in err
