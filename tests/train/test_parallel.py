"""Two processes follow the loss curve of one; a killed worker is restarted and reaches the same weights."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.runs import PLAIN, assert_same, tensors
from vitreous.runs.run import train

WORKER = """
import os, signal, sys, torch
torch.set_num_threads(1)
from dataclasses import replace
from tests.train.runs import PLAIN
from vitreous.runs.run import train
from vitreous.train import loop, parallel

folder, kind, dies = sys.argv[1:]
step = loop.Trainer.step

def mortal(self, index, batch, meter):
    if index == 10 and self.world.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, index, batch, meter)

if dies == "dies":
    loop.Trainer.step = mortal
recipe = replace(PLAIN, train=replace(PLAIN.train, parallel=kind))
train(recipe, folder)
parallel.destroy_process_group()
"""


def run(tmp_path, kind, *, dies=False, processes=2):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    folder = tmp_path / f"{kind}{processes}{dies}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command = [*launcher, "--nproc-per-node", str(processes), script, folder, kind, "dies" if dies else "lives"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return np.array([line["loss"] for line in lines if line["kind"] == "train"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    train(PLAIN, folder)
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_follow_the_same_curve(alone, tmp_path, kind):
    folder = run(tmp_path, kind)
    assert len(losses(folder)) == 20
    np.testing.assert_allclose(losses(folder), losses(alone), atol=1e-5)
    ours, theirs = tensors(folder / "model.safetensors"), tensors(alone / "model.safetensors")
    assert ours.keys() == theirs.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_killed_worker_is_restarted_to_the_same_weights(tmp_path, kind):
    uninterrupted, restarted = run(tmp_path, kind), run(tmp_path, kind, dies=True)
    assert_same(tensors(uninterrupted / "model.safetensors"), tensors(restarted / "model.safetensors"))


@pytest.mark.slow
def test_shards_resume_on_another_number_of_processes(alone, tmp_path):
    """Two processes write shards; one process resumes from them and follows the same loss curve."""
    folder = run(tmp_path, "fsdp")
    for path in (folder / "checkpoints").glob("step-00000020*"):
        path.rename(path.with_name(f"gone-{path.name}"))
    train(replace(PLAIN, train=replace(PLAIN.train, parallel="ddp")), folder, resume=True)
    np.testing.assert_allclose(losses(folder), losses(alone), atol=1e-5)


def test_a_batch_size_not_divisible_by_the_processes_is_an_error():
    from vitreous.train.parallel import World

    with pytest.raises(ValueError, match="128 is not divisible by 3 processes"):
        World(rank=0, size=3).local_rows(128)
    assert World(rank=2, size=4).local_rows(8) == slice(4, 6)


def test_fsdp_alone_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="fsdp needs several processes"):
        train(replace(PLAIN, train=replace(PLAIN.train, parallel="fsdp")), tmp_path)
