"""With so many classes that all scores would not fit in memory, metrics are the same and memory stays small."""

import json
import resource

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from vitreous.cli import main
from vitreous.samples import Batch, Classes, Inputs
from vitreous.tasks.classify import ClassMeter
from vitreous.tasks.many_classes import ManyClassMeter


def batches(num_classes, sizes=(5, 1, 7)):
    start = 0
    for size in sizes:
        logits = torch.randn(size, num_classes).round(decimals=1)  # with ties
        labels = torch.randint(num_classes, (size,))
        targets = Classes(torch.eye(num_classes)[labels])
        yield (
            {"class": logits},
            Batch(Inputs(torch.zeros(size, 3, 2, 2)), targets),
            np.arange(start, start + size)[::-1],
        )
        start += size


def filled(meter, parts):
    for outputs, batch, indices in parts:
        meter.add(outputs, batch, indices)
    return meter


def test_the_metrics_are_those_of_all_scores():
    parts = list(batches(30))
    compact, full = filled(ManyClassMeter(), parts), filled(ClassMeter(("",) * 30), parts)
    assert len(compact) == len(full) == 13
    for name, value in full.result().items():
        assert compact.result()[name] == pytest.approx(value, rel=1e-6)
        assert compact.result()[name].unit == value.unit
        assert compact.result()[name].higher_is_better == value.higher_is_better
    assert compact.result().keys() == full.result().keys()
    assert np.array_equal(compact.arrays()["labels"], full.arrays()["targets"].argmax(1))


def test_processes_are_merged():
    parts = list(batches(30))
    first, second = filled(ManyClassMeter(), parts[:1]), filled(ManyClassMeter(), parts[1:])
    second.merge(first)
    together = filled(ManyClassMeter(), parts)
    assert second.result() == together.result()
    assert all(np.array_equal(second.arrays()[name], column) for name, column in together.arrays().items())


def test_a_diverged_model_is_reported():
    ((outputs, batch, indices),) = batches(30, (4,))
    meter = filled(ManyClassMeter(), [({"class": outputs["class"] * torch.nan}, batch, indices)])
    with pytest.raises(ValueError, match="the model has probably diverged"):
        meter.result()


class Numbered:
    """Tiny images of as many classes as wanted."""

    def __init__(self, num_classes, number):
        self.classes = [f"c{index}" for index in range(num_classes)]
        self.targets = [index % num_classes for index in range(number)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return np.full((16, 16, 3), index * 37 % 255, np.uint8), self.targets[index]


TINY = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "num_heads": 1}


def test_train_evaluate_and_report(tmp_path, monkeypatch):
    """The same path with a low limit: training, the run folder, evaluation, its table and its JSON."""
    monkeypatch.setattr("vitreous.tasks.classify.MANY_CLASSES", 10)
    monkeypatch.setattr("vitreous.cli.evaluate.MANY_CLASSES", 10)
    data = Numbered(30, 120)
    config = vt.TrainConfig(steps=2, batch_size=8)
    result = vt.train(vt.create_model("vit_tiny_16", **TINY), data, tmp_path / "run", config=config)
    assert (tmp_path / "run" / "report.html").read_text().count("damaged") == 0
    found = vt.evaluate(result.model, data)
    assert found.per_class.support.tolist() == [4] * 30
    assert found.confused(3).sum() == 4
    with pytest.raises(ValueError, match=r"a confusion matrix of 30 classes would take .* use evaluation.per_class"):
        found.confusion  # noqa: B018
    folder = tmp_path / "images"
    for index in range(60):
        path = folder / f"c{index % 30}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data[index][0]).save(path)
    command = ["evaluate", str(tmp_path / "run" / "model.safetensors"), "--data", str(folder)]
    assert main([*command, "--output", str(tmp_path / "found.json")]) == 0
    assert "confusion" not in json.loads((tmp_path / "found.json").read_text())


@pytest.mark.slow
def test_fifty_thousand_classes(tmp_path):
    """All scores of 100,000 images would take 20 GB, a confusion matrix 20 GB more."""
    data = Numbered(50_000, 100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = vt.TrainConfig(steps=2, batch_size=32)
    result = vt.train(vt.create_model("vit_tiny_16", **TINY), data, tmp_path / "run", config=config)
    found = vt.evaluate(result.model, data)
    assert len(found.meter) == 100_000
    assert found.per_class.support.sum() == 100_000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2e9
