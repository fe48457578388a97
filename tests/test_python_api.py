"""Python as people write it: models and datasets that they hold go in, a model that is ready to use comes out."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchvision.datasets import FakeData

import vitreous as vt
from vitreous.cli import main
from vitreous.data.base import Arrays, one_hot
from vitreous.data.shapes import Shapes
from vitreous.runs.arguments import looks_like_data
from vitreous.runs.start import is_trained
from vitreous.train import loop
from vitreous.weights.files import read

TWO_STEPS = vt.TrainConfig(steps=2, batch_size=8)
TINY = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 1, "num_heads": 2}


def fake(number=24, classes=3):
    return FakeData(number, (3, 32, 32), classes)


def tiny(**options):
    return vt.create_model("vit_tiny_16", **TINY | options)


def arrays(number=24):
    pixels = np.random.default_rng(0).integers(0, 256, (number, 3, 32, 32), dtype=np.uint8)
    return Arrays(pixels, one_hot(np.arange(number) % 3, 3), ("ant", "bee", "cow"))


class Masked(torch.utils.data.Dataset):
    """Bright images with the upper half of another class."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        mask = np.zeros((40, 48), np.uint8)
        mask[:20] = 1
        return Image.fromarray(pixels), mask


def test_ten_lines_from_a_dataset_to_an_explanation(tmp_path):
    data = fake()
    model = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = vt.train(model, data, tmp_path, config=TWO_STEPS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the model is untouched"
    assert model.config.num_classes == 1000
    assert not result.model.training
    assert result.classes == ("0", "1", "2")
    assert result.folder == tmp_path
    assert 0 <= result.metrics["accuracy"] <= 1
    assert "for 3 classes" in str(result)
    assert "crops: " in str(result)
    assert "--" not in str(result)
    evaluation = vt.evaluate(result.model, data)
    assert len(evaluation.meter) == 24
    prediction = result.predictor(top=2)(data[0][0])
    assert prediction.best in result.classes
    assert vt.Predictor(tmp_path / "model.safetensors", top=2)(data[0][0]) == prediction
    explanation = vt.explain(result.model, data[0][0], quick=True)
    assert explanation.answer.labels.names == result.classes
    assert json.loads((tmp_path / "config.json").read_text())["data"]["source"] == (
        "torchvision.datasets.FakeData with 24 images"
    )


DATA = {
    "foreign": lambda: fake(),
    "subset": lambda: Subset(fake(), range(20)),
    "list of pairs": lambda: [fake()[index] for index in range(20)],
    "tensors": lambda: TensorDataset(torch.rand(20, 3, 32, 32), torch.arange(20) % 3),
    "ours": lambda: arrays(),
    "splits": lambda: vt.Splits(arrays(20), arrays(8)),
    "pair": lambda: (fake(), fake(6)),
    "pair of both kinds": lambda: (arrays(), [(arrays().pixels([i])[0], i) for i in range(3)]),
    "word": lambda: "shapes",
}


@pytest.mark.parametrize("kind", DATA)
def test_data_of_every_kind(tmp_path, kind):
    result = vt.train(tiny(), DATA[kind](), tmp_path, config=TWO_STEPS)
    assert result.steps == 2
    assert result.meter is not None
    assert is_trained(result.model)


MODELS = {
    "a name": lambda folder: "vit_tiny_16",
    "a config": lambda folder: tiny().config,
    "a model": lambda folder: tiny(),
    "a compiled model": lambda folder: torch.compile(tiny()),
    "none": lambda folder: None,
    "a weights file": lambda folder: saved(folder),
}


def saved(folder):
    vt.save(tiny(), folder / "start.safetensors")
    return folder / "start.safetensors"


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_every_kind(tmp_path, kind):
    result = vt.train(MODELS[kind](tmp_path), arrays(), tmp_path / "run", config=TWO_STEPS)
    assert result.classes == ("ant", "bee", "cow")
    if kind not in ("a name", "none"):
        assert result.model.config.dim == 32


def test_a_recipe_takes_its_folder_second_or_other_data_with_a_folder(tmp_path):
    recipe = vt.Recipe(tiny().config, vt.DataConfig("shapes", limit=16), train=TWO_STEPS)
    assert vt.train(recipe, tmp_path / "one").classes == Shapes.classes
    other = vt.train(recipe, fake(), tmp_path / "two", batch_size=4)
    assert len(other.classes) == 3
    assert other.images == 8
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for source in ("digits", tmp_path / "photos"):
        with pytest.raises(ValueError, match=r"it looks like data; .*output=…"):
            vt.train(recipe, source)
    (tmp_path / "one" / "config.json").unlink()
    assert not looks_like_data(str(tmp_path / "one")), "a folder with checkpoints is a run's"


def test_weights_of_a_model_are_its_start(tmp_path):
    learned = vt.train(tiny(), arrays(), tmp_path / "one", config=vt.TrainConfig(steps=3, batch_size=8)).model
    assert is_trained(learned)
    assert not is_trained(tiny())
    frozen = vt.TrainConfig(steps=1, batch_size=8, freeze_blocks=-1)
    again = vt.train(learned, arrays(), tmp_path / "two", config=frozen)
    start, end = (dict(model.named_parameters()) for model in (learned, again.model))
    assert all(torch.equal(start[name], value) for name, value in end.items() if not name.startswith("head"))
    assert "rate" in {one.setting for one in vt.train(learned, arrays(), tmp_path / "three", epochs=1).chosen}


def test_a_head_is_kept_only_for_the_same_classes(tmp_path):
    model = tiny(num_classes=3)
    assert not any("head" in note for note in vt.train(model, arrays(), tmp_path / "1", config=TWO_STEPS).notes)
    model.name_classes(["x", "y", "z"])
    assert any("a new head" in note for note in vt.train(model, arrays(), tmp_path / "2", config=TWO_STEPS).notes)
    result = vt.train(model, fake(), tmp_path / "3", config=TWO_STEPS)
    assert result.classes == ("x", "y", "z"), "numbers are the classes of a model with as many names"


def test_settings_that_are_given_are_not_chosen(tmp_path):
    result = vt.train(tiny(), arrays(), tmp_path, epochs=1, batch_size=10, lr=1e-4, valid=0.2, augment=vt.Augment())
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["train"]["epochs"], config["train"]["batch_size"]) == (1, 10)
    assert config["train"]["optimizer"]["lr"] == 1e-4
    assert config["data"]["valid_share"] == 0.2
    assert {one.setting for one in result.chosen} == {"task", "optimizer"}


def test_the_command_line_chooses_the_same(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(8):
            Image.new("RGB", (40, 48), (index * 20, len(name), 0)).save(tmp_path / "photos" / name / f"{index}.png")
    words = ["--data", str(tmp_path / "photos"), "--model", "vit_tiny_16", "--train.epochs", "1"]
    small = ["--model.dim", "32", "--model.depth", "1", "--model.num-heads", "2", "--output", str(tmp_path / "cli")]
    assert main(["train", *words, *small]) == 0
    vt.train("vit_tiny_16", tmp_path / "photos", tmp_path / "python", epochs=1)
    found = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("cli", "python")]
    for config in found:
        config["model"] |= {"dim": 0, "depth": 0, "num_heads": 0}
    assert found[0] == found[1]


def test_segmentation_from_pairs_of_images_and_masks(tmp_path):
    result = vt.train(tiny(), Masked(), tmp_path, config=TWO_STEPS)
    assert result.model.spec.task == "segment"
    assert "miou" in result.metrics
    assert any("weights of the given ViT" in note for note in result.notes)
    assert result.predictor()(Masked()[0][0]).mask.shape == (40, 48)
    assert "miou" in vt.evaluate(result.model, Masked()).metrics


def test_a_multi_label_task(tmp_path):
    data = [(fake()[index][0], [1, index % 2, 0]) for index in range(12)]
    result = vt.train(tiny(), data, tmp_path, config=TWO_STEPS)
    assert result.model.spec.task == "multilabel"
    assert "auroc" in vt.evaluate(result.model, data).metrics


class Pulled(Exception):
    """The plug."""


def test_a_run_on_foreign_data_resumes_to_the_same_bits(tmp_path, monkeypatch):
    config = vt.TrainConfig(steps=6, batch_size=8, checkpoint_every=2, ema=0.5)
    model = tiny(drop_rate=0.1)
    vt.train(model, fake(), tmp_path / "whole", config=config)
    step = loop.Trainer.step

    def limited(self, index, batch, meter):
        if index == 3:
            raise Pulled
        step(self, index, batch, meter)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", limited)
        with pytest.raises(Pulled):
            vt.train(model, fake(), tmp_path / "cut", config=config)
    vt.train(model, fake(), tmp_path / "cut", config=config, resume=True)
    whole, cut = (read(tmp_path / name / "checkpoints/step-00000006.safetensors").tensors for name in ("whole", "cut"))
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def test_the_words_of_errors_are_those_of_python(tmp_path, capsys):
    vt.train(tiny(), fake(), tmp_path, config=TWO_STEPS)
    with pytest.raises(ValueError, match="add resume=True to continue it, or choose another output"):
        vt.train(tiny(), fake(), tmp_path, config=TWO_STEPS)
    source = json.loads((tmp_path / "config.json").read_text())["data"]["source"]
    words = ["train", "--data", "digits", "--output", str(tmp_path), "--resume"]
    assert main(words) == 2
    words[2] = source
    assert main(words) == 2
    assert source in capsys.readouterr().err


def test_what_a_dataset_raises_is_seen_with_its_index(tmp_path):
    class Broken(FakeData):
        def __getitem__(self, index):
            if index == 13:
                raise KeyError("size")
            return super().__getitem__(index)

    with pytest.raises(ValueError, match=r"Broken\[13\] raised KeyError: 'size'") as caught:
        vt.train(tiny(), Broken(24, (3, 32, 32), 3), tmp_path, config=TWO_STEPS)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.slow
def test_many_processes_agree_on_foreign_data(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch\nfrom torchvision.datasets import FakeData\nimport vitreous as vt\n"
        "torch.set_num_threads(1)\n"
        "model = vt.create_model('vit_tiny_16', image_size=32, patch_size=8, dim=32, depth=1, num_heads=2)\n"
        "config = vt.TrainConfig(steps=2, batch_size=8, device='cpu')\n"
        "result = vt.train(model, FakeData(24, (3, 32, 32), 3), sys.argv[1], config=config)\n"
        "assert result.predictor()(FakeData(1)[0][0]).best in '012'\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


IMAGES = torch.zeros(2, 3, 32, 32)
ONE_BATCH = np.zeros((10, 32, 32, 3), np.uint8)

#: What is called with, which argument is wrong, and what is said.
WRONG = [
    (lambda m: vt.train(3, fake()), "model must be a model name, a Vitreous model .* got int"),
    (lambda m: vt.train(nn.Linear(2, 2), fake()), "model must be .* got Linear"),
    (lambda m: vt.train("vit_tny_16", fake()), "no model, recipe or weights named 'vit_tny_16'; did you mean"),
    (lambda m: vt.train("no.py", fake()), "there is no recipe file no.py"),
    (lambda m: vt.train(vt.accelerate(m, IMAGES, engines="eager"), fake()), "an accelerated model cannot be trained"),
    (lambda m: vt.train(m), "no training data: pass data"),
    (lambda m: vt.train(m, 5), "data is a path, .* got int"),
    (lambda m: vt.train(m, ONE_BATCH), "got ndarray"),
    (lambda m: vt.train(m, (ONE_BATCH, np.zeros(10))), "got ndarray"),
    (lambda m: vt.train(m, DataLoader(fake())), "pass its dataset"),
    (lambda m: vt.train(m, "nowhere/at/all"), "there is no 'nowhere/at/all'"),
    (lambda m: vt.train(m, fake(), 3), "output must be a string, got 3"),
    (lambda m: vt.train(m, fake(), resume="no"), "resume must be True or False, got 'no'"),
    (lambda m: vt.train(m, fake(), epochs="3"), "epochs must be a number, got '3'"),
    (lambda m: vt.train(m, fake(), batch_size=1.5), "batch_size must be a whole number, got 1.5"),
    (lambda m: vt.train(m, fake(), lr="fast"), "lr must be a number, got 'fast'"),
    (lambda m: vt.train(m, fake(), augment="none"), r"augment must be a vt.Augment\(…\), got 'none'"),
    (lambda m: vt.train(m, fake(), config=3), "config must be a TrainConfig, got 3"),
    (lambda m: vt.train(m, fake(), config={"epoch": 3}), "no option 'epoch'; did you mean 'epochs'"),
    (lambda m: vt.train(m, fake(), task="clasify"), "got 'clasify'; did you mean 'classify'"),
    (lambda m: vt.train(m, fake(), task="segment"), "has one class per image, the task needs a mask per image"),
    (lambda m: vt.train(m.config, fake(), weights=3), "weights must be a string, got 3"),
    (lambda m: vt.train(m, fake(), weights="x.pt"), "the model already has weights"),
    (lambda m: vt.train(m, fake(), valid="nowhere"), "there is no 'nowhere'"),
    (lambda m: vt.train(m, fake(), valid=2), "must lie in"),
    (lambda m: vt.train(m, fake(), valid=True), "data is a path, .* got bool"),
    (lambda m: vt.train(m, (fake(), fake()), valid=fake()), r"data is a pair \(train, valid\) already"),
    (lambda m: vt.train(m, fake(classes=1)), "only one class, '0'"),
    (lambda m: vt.train(m, [(IMAGES[0], {"boxes": [], "labels": []})] * 9), "no task supports"),
    (lambda m: vt.evaluate(3, fake()), "a Vitreous model or an accelerated model, got int"),
    (lambda m: vt.evaluate(nn.Linear(2, 2), fake()), "or an accelerated model, got Linear"),
    (lambda m: vt.evaluate(m, None), "data is a path, .* got NoneType"),
    (lambda m: vt.evaluate(m, DataLoader(fake())), "pass its dataset"),
    (
        lambda m: vt.evaluate(m, fake(), split="test"),
        "split='test' needs data given by path or as Splits; leave it out",
    ),
    (lambda m: vt.evaluate(m, "digits", split=3), "split must be train, valid or test, got 3"),
    (lambda m: vt.evaluate(m, fake(), image_size="x"), "image_size must be a positive int"),
    (lambda m: vt.evaluate(m, fake(), task="x"), "task must be a task's name or options, got 'x'"),
    (lambda m: vt.evaluate(m, fake(), engine=3), "engine must be one of eager, auto, got 3"),
    (lambda m: vt.evaluate(m, fake(), batch_size=0), "batch_size must be at least 1, got 0"),
    (lambda m: vt.evaluate(m, fake(), progress=3), "progress must be a function, got 3"),
    (lambda m: vt.Predictor(None), "or an accelerated model, got NoneType"),
    (
        lambda m: vt.Predictor(m, model="vit_tiny_16"),
        "model='vit_tiny_16' is only for weights files, and a ViT was given",
    ),
    (lambda m: vt.Predictor(m, engine="fast"), "engine must be one of eager, auto, got 'fast'"),
    (lambda m: vt.Predictor(m, top="x"), "top must be a whole number, got 'x'"),
    (lambda m: vt.Predictor(m, batch_size=0), "batch_size must be at least 1, got 0"),
    (lambda m: vt.Predictor(m, device="cpoo"), "device must be a torch device such as .* got 'cpoo'"),
    (lambda m: vt.Predictor(m, device=3.5), "device must be a torch device such as .* got 3.5"),
    (lambda m: vt.Predictor(m)(3), "an image is .* got int"),
    (lambda m: vt.Predictor(m)(iter([])), "an image is .* got list_iterator"),
    (lambda m: vt.Predictor(m).embed([3]), "an image is .* got int"),
    (lambda m: list(vt.Predictor(m).predict_many(3)), "expected a list of images, .* got int"),
    (lambda m: list(vt.Predictor(m).predict_many(IMAGES[0])), "expected a list of images, .* got Tensor"),
    (lambda m: list(vt.Predictor(m).embed_many("nowhere/*.jpg")), r"no file matches 'nowhere/\*.jpg'"),
    (lambda m: vt.load(3), "not int"),
    (lambda m: vt.load(m), "not ViT"),
    (lambda m: vt.load("nothing"), "'nothing' is neither a weights file nor the name of public weights"),
    (lambda m: vt.create_model(3), "by name or by config, got int"),
    (lambda m: vt.create_model(m), "by name or by config, got ViT"),
    (lambda m: vt.create_model("vit_tny"), "unknown model 'vit_tny'; did you mean"),
    (lambda m: vt.create_model("vit_tiny_16", num_clases=3), "did you mean 'num_classes'"),
    (lambda m: vt.create_model("vit_tiny_16", num_classes="x"), "num_classes must be a whole number, got 'x'"),
    (lambda m: vt.save(3, "x.safetensors"), "save expects a Vitreous model, got int"),
    (lambda m: vt.save(m, 3), "not int"),
    (lambda m: vt.accelerate(3, IMAGES), "accelerate needs a Vitreous model, got int"),
    (lambda m: vt.accelerate(m, None), "example must be a batch of images as a tensor, .* got NoneType"),
    (lambda m: vt.accelerate(m, IMAGES.numpy()), "example must be .* got ndarray"),
    (lambda m: vt.accelerate(m, IMAGES[0]), r"images must have shape \(batch, channels, height, width\)"),
    (lambda m: vt.accelerate(m, IMAGES, "fp8"), "precision must be one of"),
    (lambda m: vt.accelerate(m, IMAGES, tolerance="x"), "tolerance must be positive, got 'x'"),
    (lambda m: vt.accelerate(m, IMAGES, engines=3), "engines must be a string or a list of strings, got 3"),
    (lambda m: vt.accelerate(m, IMAGES, progress=3), "progress must be a function, got 3"),
    (lambda m: vt.export("x.safetensors", "x.onnx"), "export needs a Vitreous model, got str"),
    (lambda m: vt.export(m, 3), "not int"),
    (lambda m: vt.export(m, "x.foo"), "should end in .onnx or .pt2"),
    (lambda m: vt.export(m, "x.onnx", format=3), "unknown format 3"),
    (lambda m: vt.export(m, "x.onnx", batches=3), "batches must be positive batch sizes such as .*, got 3"),
    (lambda m: vt.export(m, "x.onnx", tolerance="x"), "tolerance must be a number, got 'x'"),
    (lambda m: vt.record("x").__enter__(), "record needs a Vitreous model, got str"),
    (lambda m: vt.record(m, 3).__enter__(), "layers must be a string or a list of strings, got 3"),
    (lambda m: vt.record(m, what=3).__enter__(), "what must be a string or a list of strings, got 3"),
    (lambda m: vt.record(m, reduce=3).__enter__(), "reduce must be a function, got 3"),
    (lambda m: vt.explain(m, 3), "an image is .* got int"),
    (lambda m: vt.explain(m, IMAGES[0], target=1.5), "target must be the name or index of a class, got 1.5"),
    (lambda m: vt.explain(m, IMAGES[0], methods=3), "methods must be a string or a list of strings, got 3"),
    (lambda m: vt.explain(m, IMAGES[0], progress=3), "progress must be a function, got 3"),
]


@pytest.fixture(scope="module")
def model():
    return tiny(num_classes=3)


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_wrong_arguments_get_a_sentence(model, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = WRONG[index]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call(model)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
    assert "object has no attribute" not in str(caught.value)
