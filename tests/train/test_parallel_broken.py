"""With unreadable images every process still runs the same number of forward passes, without deadlock."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

WORKER = """
import sys, torch
torch.set_num_threads(1)
from dataclasses import replace
from tests.train.runs import PLAIN
from vitreous.runs.recipe import DataConfig
from vitreous.runs.run import train
from vitreous.train import parallel

folder, photos, kind = sys.argv[1:]
model = PLAIN.model.override(stem="residual")
data = DataConfig(photos, memory="no")
settings = replace(PLAIN.train, parallel=kind, steps=4, batch_size=2, ema=0.0, evaluate_every=0.2)
recipe = replace(PLAIN, model=model, data=data, train=settings)
outcome = train(recipe, folder)
parallel.destroy_process_group()
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """All validation images of the second process are unreadable, and some training images of both."""
    root = tmp_path_factory.mktemp("photos")
    for part, broken in (("train", (0, 3, 4)), ("val", range(1, 12, 2))):
        for index in range(12):
            path = root / part / ("cat" if index < 6 else "dog") / f"{index:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
            if index in broken:
                path.write_bytes(path.read_bytes()[:60])
    return root


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_all_validation_images_of_a_process_are_broken(tmp_path, photos, kind):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    command = [*launcher, script, tmp_path / "run", photos, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["valid_images"] == 6
    assert sum("/val/" in name for name in result["unreadable"]) == 6
