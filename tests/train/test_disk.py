"""Full disks, removed folders, corrupt files: training continues, or stops with a one-line error."""

import errno
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

from tests.train.runs import PLAIN, RECIPE, assert_same, tensors, with_training
from vitreous.runs.run import train
from vitreous.train import log as log_module
from vitreous.train import loop
from vitreous.train.checkpoint import Checkpoints
from vitreous.train.log import AppendOnlyFile
from vitreous.train.loop import ModelNotSaved
from vitreous.train.parallel import World

SMALL = replace(
    with_training(steps=4, checkpoint_every=2, batch_size=8, evaluate_every=1, ema=0.0),
    data=replace(RECIPE.data, limit=16),
)
LAST = "checkpoints/step-00000004.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    train(SMALL, folder)
    return folder


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lines(folder, kind="train"):
    read = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in read if line["kind"] == kind]


def test_log_catches_up_after_a_full_disk(whole, tmp_path, monkeypatch, capsys):
    """No line is lost or truncated, and there is one warning."""
    written, write = [], os.write

    def sometimes_full(number, content):
        written.append(len(content))
        if 3 < len(written) < 12:
            return full()
        return write(number, bytes(content)[: 1 + len(content) // 2])

    monkeypatch.setattr(log_module.os, "write", sometimes_full)
    train(SMALL, tmp_path)
    assert lines(tmp_path) == lines(whole)
    assert lines(tmp_path, "valid") == lines(whole, "valid")
    assert (
        capsys.readouterr().err.count("log.jsonl cannot be written (No space left on device); training continues") == 1
    )


def test_tensorboard_reads_the_events(whole):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(step, pytest.approx(loss)) for step, loss in lines(whole)]


def test_error_if_the_model_cannot_be_saved(whole, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", full)
        with pytest.raises(
            ModelNotSaved, match=r"model.safetensors \(No space left on device\); step-00000004 in .* is intact"
        ):
            train(SMALL, tmp_path)
    assert not (tmp_path / "result.json").exists()
    train(SMALL, tmp_path, resume=True)
    assert_same(tensors(whole / "model.safetensors"), tensors(tmp_path / "model.safetensors"))


def test_an_unsaved_model_is_not_the_best(tmp_path, monkeypatch):
    """The best is a later, worse model that was saved, so that the file and the reported score agree."""
    saved, save = [], loop.save

    def fails_first(model, path):
        saved.append(path)
        return full() if len(saved) == 1 else save(model, path)

    scores = iter([0.9, 0.5, 0.4])
    monkeypatch.setattr(loop, "save", fails_first)
    measure = loop.Trainer.measure

    def scored(self, data):
        measured = measure(self, data)
        score = next(scores, None)
        result = measured.meter.result()
        if score is not None:
            result["accuracy"] = type(result["accuracy"])(score)
            measured.meter.result = lambda: result
        return measured

    monkeypatch.setattr(loop.Trainer, "measure", scored)
    train(replace(SMALL, train=replace(SMALL.train, steps=6)), tmp_path)
    assert len(saved) == 2


def test_error_if_the_record_cannot_be_written(tmp_path, monkeypatch):
    from vitreous.runs import record, run

    with monkeypatch.context() as patch:
        patch.setattr(record, "write_atomically", full)
        with pytest.raises(
            ValueError, match=r"record of the run could not be written .*; free disk space .* resume=True"
        ):
            train(SMALL, tmp_path)
    assert run.train(SMALL, tmp_path, resume=True).steps == 4
    assert (tmp_path / "report.html").exists()


def test_a_folder_removed_during_the_run_is_recreated(whole, tmp_path, monkeypatch, capsys):
    step = loop.Trainer.step

    def removing(self, index, batch, meter):
        step(self, index, batch, meter)
        if index == 2:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(loop.Trainer, "step", removing)
    outcome = train(SMALL, tmp_path / "run")
    assert outcome.metrics
    assert_same(tensors(whole / LAST), tensors(tmp_path / "run" / LAST))
    said = capsys.readouterr().err
    assert "log.jsonl was removed during the run; a new file was started" in said
    assert "config.json was removed during the run and has been restored" in said
    monkeypatch.undo()
    assert train(SMALL, tmp_path / "run", resume=True).steps == 4


def test_append_only_file_is_recreated_after_removal(tmp_path):
    path = tmp_path / "deep" / "log"
    file = AppendOnlyFile(path)
    file.add(b"one\n")
    assert file.flush() is None
    path.unlink()
    file.add(b"two\n")
    assert "was removed" in file.flush()
    assert path.read_bytes() == b"two\n"
    file.close()


def description(**changes):
    return json.dumps({"step": 2, "seconds": 1.0, "processes": 1, "files": []} | changes).encode()


ODD = [
    b"null",
    b"[]",
    b"[" * 100_000,
    b"\xff",
    description(),
    description(seconds=None, files=[{}]),
    description(seconds="1", files=[{}]),
    description(seconds=float("nan"), files=[{}]),
    description(step="2", files=[{}]),
    description(step=10**40, files=[{}]),
    description(files={"a": 1}),
    description(files=[3]),
    description(files=[{"name": "step-00000002.json"}]),
]


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_invalid_manifests_are_skipped(tmp_path, content):
    checkpoints = Checkpoints(tmp_path, keep=3, world=World())
    assert checkpoints.save(1, {"x": torch.ones(2)})
    (tmp_path / "step-00000002.json").write_bytes(content)
    (tmp_path / "step-00000003.json").mkdir()
    assert checkpoints.newest().stem == "step-00000001"
    assert [text.split(":")[0] for text in checkpoints.warnings] == [
        "skipped step-00000003",
        "skipped step-00000002",
    ]
    assert not any("\n" in text for text in checkpoints.warnings)


def test_resume_with_null_seconds(whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoints/step-00000004.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": None}))
    train(SMALL, tmp_path, resume=True)
    assert_same(tensors(whole / LAST), tensors(tmp_path / LAST))


def patient(**changes):
    return replace(PLAIN, data=replace(PLAIN.data, limit=16), train=replace(PLAIN.train, **changes))


@pytest.fixture
def scores(monkeypatch):
    """Fake scores whose maximum comes after two of many evaluations."""
    step_of, measure, evaluate = {}, loop.Trainer.measure, loop.Trainer.evaluate

    def evaluating(self, valid, done, log):
        step_of["now"] = done
        return evaluate(self, valid, done, log)

    def scored(self, data):
        measured = measure(self, data)
        result = measured.meter.result()
        result["accuracy"] = type(result["accuracy"])({2: 0.3, 4: 0.7, 6: 0.7, 8: 0.6}.get(step_of["now"], 0.5))
        measured.meter.result = lambda: result
        return measured

    monkeypatch.setattr(loop.Trainer, "evaluate", evaluating)
    monkeypatch.setattr(loop.Trainer, "measure", scored)


def test_early_stopping(tmp_path, scores, capsys, monkeypatch):
    recipe = patient(steps=40, batch_size=8, patience=3, checkpoint_every=3, ema=0.9)
    outcome = train(recipe, tmp_path / "whole")
    assert (outcome.steps, outcome.stopped_early) == (10, True)
    assert "early stopping at step 10: no improvement in 3 evaluations" in capsys.readouterr().err
    result = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert (result["steps"], result["stopped_early"]) == (10, True)
    step = loop.Trainer.step

    def dies(self, index, batch, meter):
        if index == 8:
            raise KeyboardInterrupt
        step(self, index, batch, meter)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "cut")
    for _ in range(2):  # resuming a finished run trains no further
        again = train(recipe, tmp_path / "cut", resume=True)
        assert (again.steps, again.stopped_early) == (10, True)
        for name in ("model.safetensors", "checkpoints/step-00000010.safetensors"):
            assert_same(tensors(tmp_path / "whole" / name), tensors(tmp_path / "cut" / name))


def test_patience_needs_evaluations(tmp_path):
    with pytest.raises(ValueError, match="patience counts evaluations, and evaluate_every 0"):
        patient(patience=2, evaluate_every=0)
    recipe = patient(patience=2)
    with pytest.raises(ValueError, match="needs a validation set, and there is none; set it to 0"):
        train(replace(recipe, data=replace(recipe.data, source="digits", valid_share=0)), tmp_path)
