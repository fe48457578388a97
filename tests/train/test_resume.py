"""Exact resume: a run stopped anywhere reaches the same weights, moving average and optimizer state, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from tests.train.runs import RECIPE, assert_same, tensors, with_training
from vitreous.runs.run import check_settings, train
from vitreous.train import loop
from vitreous.train.optim import AdamW
from vitreous.train.schedule import Cosine

LAST = "checkpoints/step-00000012.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    train(RECIPE, folder)
    return tensors(folder / LAST)


class Pulled(Exception):
    """Simulates a process that is killed."""


def stop_after(monkeypatch, number):
    """Run for a number of steps, then stop without saving."""
    step = loop.Trainer.step

    def limited(self, index, batch, meter):
        if index == number:
            raise Pulled
        step(self, index, batch, meter)

    monkeypatch.setattr(loop.Trainer, "step", limited)


@pytest.mark.parametrize("stop", [1, 4, 7, 11])
def test_resumed_equals_uninterrupted(whole, tmp_path, monkeypatch, stop):
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Pulled):
            train(RECIPE, tmp_path)
    train(RECIPE, tmp_path, resume=True)
    assert_same(whole, tensors(tmp_path / LAST))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 13))


def test_another_seed_gives_other_weights(whole, tmp_path):
    train(with_training(seed=4), tmp_path)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(whole, tensors(tmp_path / LAST))


def test_muon_resumes_exactly(tmp_path, monkeypatch):
    recipe = with_training(optimizer="muon")
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(Pulled):
            train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert_same(tensors(tmp_path / "whole" / LAST), tensors(tmp_path / "cut" / LAST))


def test_a_damaged_checkpoint_is_skipped(whole, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(Pulled):
            train(RECIPE, tmp_path)
    newest = tmp_path / "checkpoints/step-00000008.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    train(RECIPE, tmp_path, resume=True)
    assert "skipped step-00000008" in capsys.readouterr().err
    assert_same(whole, tensors(tmp_path / LAST))


def test_training_continues_if_a_checkpoint_cannot_be_written(whole, tmp_path, monkeypatch, capsys):
    from vitreous.train import checkpoint

    write = checkpoint.write_atomically

    def full(path, content):
        if path.name == "step-00000008.safetensors":
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    train(RECIPE, tmp_path)
    assert "step 8 could not be written (No space left on device)" in capsys.readouterr().err
    assert_same(whole, tensors(tmp_path / LAST))


def test_damaged_and_later_checkpoints_do_not_evict_intact_ones(tmp_path):
    from vitreous.train.checkpoint import Checkpoints
    from vitreous.train.parallel import World

    checkpoints = Checkpoints(tmp_path, keep=1, world=World())
    state = {"x": torch.ones(3)}
    for step in (500, 1000, 600):  # resumed from 500, since 1000 was damaged
        assert checkpoints.save(step, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000600.json", "step-00000600.safetensors"]


def test_resuming_with_other_classes_is_an_error(tmp_path):
    train(with_training(steps=2), tmp_path)
    recipe = with_training(steps=2)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["dim"] = 48
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"step-00000002 does not match the model"):
        train(replace(recipe, model=replace(recipe.model, dim=48)), tmp_path, resume=True)


def test_a_failed_start_can_be_repeated(tmp_path):
    with pytest.raises(ValueError, match="cuda:7"):
        train(with_training(steps=2, device="cuda:7"), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert train(with_training(steps=2), tmp_path).steps == 2


def test_resuming_with_other_settings_is_an_error(tmp_path):
    train(with_training(steps=2), tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(train.optimizer.weight_decay was 0.05, is 1.0\)"):
        train(with_training(steps=2, optimizer=AdamW(weight_decay=1.0)), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"\(train.optimizer was adamw, is sgd; .*momentum was not set, is 0.9\)"):
        train(with_training(steps=2, optimizer="sgd"), tmp_path, resume=True)
    with pytest.raises(ValueError, match="already holds a run"):
        train(with_training(steps=2), tmp_path)


def test_remedies_for_divergence_may_change_on_resume(tmp_path):
    train(with_training(steps=2), tmp_path)
    gentler = with_training(steps=2, optimizer=AdamW(lr=1e-4), schedule=Cosine(warmup=0.5), clip=0.5, log_every=2)
    assert train(gentler, tmp_path, resume=True).steps == 2


def test_many_differences_are_counted():
    before, now = ({"model": {"mixer": {"mixer": kind, "a": n}, "b": n, "c": n}} for kind, n in (("x", 1), ("y", 2)))
    expected = r"\(model.mixer was x, is y; model.mixer.a was 1, is 2; model.b was 1, is 2; and 1 more\)"
    with pytest.raises(ValueError, match=expected):
        check_settings(before, now, "runs/one")


def test_interrupt_saves_a_checkpoint(tmp_path, monkeypatch):
    step = loop.Trainer.step

    def interrupted(self, index, batch, meter):
        step(self, index, batch, meter)
        if index == 5:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.Trainer, "step", interrupted)
    with pytest.raises(loop.Interrupted, match="stopped after step 6 of 12"):
        train(RECIPE, tmp_path)
    assert (tmp_path / "checkpoints/step-00000006.json").exists()


KILLED = """
import sys, torch
torch.set_num_threads(1)
from tests.train.runs import with_training
from vitreous.runs.run import train
train(with_training(checkpoint_every=1, steps=40), sys.argv[1], resume=True)
"""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("long")
    train(with_training(checkpoint_every=1, steps=40), folder)
    return tensors(folder / "checkpoints/step-00000040.safetensors")


@pytest.mark.parametrize("moment", [*range(3), *(pytest.param(i, marks=pytest.mark.slow) for i in range(3, 10))])
def test_killed_at_a_random_moment(long_run, tmp_path, moment):
    """Writes a checkpoint after every step, so that many kills hit a write."""
    process = start(KILLED, tmp_path)
    wait_for_a_step(tmp_path, process)
    time.sleep(random.Random(moment).uniform(0, 0.8))
    process.kill()
    process.wait()
    resume_to_the_end(long_run, tmp_path)


DIES_WRITING = """
import os, signal, sys
from vitreous import files

def replace(source, target, real=os.replace):
    if "step-00000007" in str(target) and str(target).endswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)

files.os.replace = replace
"""


@pytest.mark.parametrize("ending", [".safetensors", ".json"])
def test_killed_inside_the_write_of_a_checkpoint(long_run, tmp_path, ending):
    process = start(DIES_WRITING + KILLED, tmp_path, ending)
    assert process.wait(timeout=120) == -signal.SIGKILL
    assert any(path.name.startswith(".step-00000007") for path in (tmp_path / "checkpoints").iterdir())
    resume_to_the_end(long_run, tmp_path)


def start(script, *arguments):
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stderr=subprocess.DEVNULL)


def resume_to_the_end(expected, folder):
    train(with_training(checkpoint_every=1, steps=40), folder, resume=True)
    assert_same(expected, tensors(folder / "checkpoints/step-00000040.safetensors"))
    left = [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == [], "half-written files are taken away"


def wait_for_a_step(folder, process):
    """Wait until the process has written something."""
    before = latest(folder)
    end = time.monotonic() + 60
    while latest(folder) == before and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def latest(folder):
    return max((path.name for path in folder.glob("checkpoints/*.json")), default="")
