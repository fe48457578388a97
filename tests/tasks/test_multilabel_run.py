"""Multi-label training from a CSV table with unknown labels to the report."""

import csv
import json
from dataclasses import replace

import numpy as np
from PIL import Image

import vitreous as vt
from tests.train.runs import RECIPE
from vitreous.runs.run import train


def table_of_scenes(folder, number=40):
    """A label per kind of shape in the scene, some of them missing."""
    scenes = vt.Shapes(number, 32).batch(range(number))
    draws = np.random.default_rng(0)
    with open(folder / "labels.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "disk", "square", "star"])
        for index, label in enumerate(scenes.labels):
            Image.fromarray(scenes.images[index].transpose(1, 2, 0)).save(folder / f"{index}.png")
            known = [str(int(vt.Shapes.classes[label] == name)) for name in ("disk", "square", "star")]
            rows.writerow([f"{index}.png", *(value if draws.random() < 0.8 else "" for value in known)])
    return folder / "labels.csv"


def test_a_table_with_unknown_labels_trains(tmp_path):
    data = vt.DataConfig(str(table_of_scenes(tmp_path)), valid_share=0.4)
    recipe = replace(RECIPE, data=data, task=vt.MultiLabel(), train=replace(RECIPE.train, steps=4, batch_size=8))
    outcome = train(recipe, tmp_path / "run")
    kept = outcome.meter.arrays()
    assert np.isfinite(kept["logits"]).all()
    assert np.isnan(kept["targets"]).any(), "unknown labels reach the task"
    assert {"auroc", "average_precision", "auroc/disk"} <= outcome.metrics.keys()
    assert vt.load(tmp_path / "run" / "model.safetensors").spec.task == "multilabel"
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert np.isfinite(losses).all(), "mixed and masked"
    assert "AUROC" in (tmp_path / "run" / "report.html").read_text()
