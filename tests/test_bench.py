"""Inference benchmark: ratios, spread, shares, and the reasons of implementations that cannot run."""

import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import inference, interleave, standings
from benchmarks.implementations import Implementation, Workload


def test_spread_is_of_ratios_within_rounds():
    """A round that is slow for all candidates changes nothing."""
    seconds = {"base": [2.0, 200.0, 4.0, 6.0, 8.0], "other": [2.0, 100.0, 1.0, 2.0, 1.0]}
    assert interleave.spread(seconds, "base") == {"base": (1, 1, 1), "other": (2, 3, 4)}


def test_rounds_fill_the_budget_and_the_best_pass_of_a_turn_counts(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(name, *durations):
        def one_pass():
            clock[0] += durations[order.count(name) % len(durations)]
            order.append(name)

        return one_pass

    candidates = {"slow": run("slow", 0.5), "quick": run("quick", 0.05, 0.03, 0.04)}
    seconds = interleave.interleave_for(2.0, candidates, fewest=2, turn=0.1)
    assert seconds == {"slow": [0.5] * 4, "quick": [pytest.approx(0.03)] * 4}
    assert order.count("quick") == 12
    assert len(interleave.interleave_for(0.0, candidates, fewest=2)["slow"]) == 2


@pytest.fixture
def workload(tmp_path):
    reference = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).eval()
    return Workload("vit_tiny_16", reference, torch.randn(2, 3, 2, 2), tmp_path)


def near(workload):
    return lambda images: 1.1 * workload.reference(images)


def missing(workload):
    import no_such_package  # noqa: F401


def wrong(workload):
    return lambda images: images.reshape(7, 7)


def unwilling(workload):
    raise ValueError("not on a Tuesday\nand more")


def speechless(workload):
    raise ValueError


def test_implementations_that_cannot_run_are_listed_with_the_reason(workload, monkeypatch):
    entries = [Implementation("timm", lambda workload: workload.reference), Implementation("near", near, "int8")]
    entries += [Implementation(build.__name__, build) for build in (missing, wrong, unwilling, speechless)]
    monkeypatch.setattr(inference, "IMPLEMENTATIONS", [*entries, Implementation("stranger", near, same_weights=False)])
    runners, rows, absent = inference.prepare_all(workload, Console(quiet=True))
    assert [row["name"] for row in rows] == list(runners) == ["timm", "near", "stranger"]
    assert [row["error"] for row in rows] == [0, pytest.approx(0.1, rel=1e-4), None]
    assert absent["missing"] == "no_such_package is not installed"
    assert absent["wrong"].startswith("RuntimeError: shape")
    assert absent["unwilling"] == "not on a Tuesday"
    assert absent["speechless"] == "no reason given"


def test_the_row_has_the_chosen_engine_and_precision(workload):
    class Fast(nn.Sequential):
        report = SimpleNamespace(precision="int8", engine="native")

    implementation = Implementation("ours", lambda workload: Fast(workload.reference), "auto")
    _, row = inference.prepare_one(implementation, workload, workload.reference(workload.images).detach())
    assert (row["precision"], row["engine"]) == ("int8", "native")


def test_shares_are_of_the_limit_in_the_same_precision():
    limits = {"fp32": 100.0, "int8": 400.0}
    shares = [
        inference.share({"images_per_second": 5, "precision": name}, 10, limits) for name in ("fp32", "int8", "bf16")
    ]
    assert shares == [0.5, 0.125, None]


@pytest.mark.parametrize(("name", "billions"), [("vit_base_16", 35.13), ("swin_tiny", 8.98)])
def test_operations_are_those_of_all_images(name, billions, tmp_path):
    """Twice the published multiply-adds at 224 pixels."""
    workload = Workload(name, nn.Identity(), torch.empty(8, 3, 224, 224), tmp_path)
    assert workload.operations / 8e9 == pytest.approx(billions, rel=1e-3)


def test_a_library_without_the_model_raises(tmp_path):
    workload = Workload("swin_tiny", nn.Identity(), torch.empty(1), tmp_path)
    with pytest.raises(ValueError, match="vit-pytorch has no swin_tiny"):
        workload.vit_size("vit-pytorch")


def test_every_row_and_every_absence_is_shown():
    times = {"timm": [2.0, 2.0], "vitreous, int8": [1.0, 0.5]}
    rows = [{"name": name, "precision": "fp32", "engine": None, "error": None, "share": None} for name in times]
    rows = [row | inference.timing(times, row["name"], 8) for row in rows]
    comparison = {"model": "vit_tiny_16", "batch": 8, "rounds": 2, "limits": {"fp32": 1e11}, "rows": rows}
    comparison["absent"] = {"OpenVINO": "openvino is not installed"}
    assert (rows[1]["images_per_second"], rows[1]["speed_up"], rows[1]["median"]) == (16, 4, 3)
    record = {"command": "c", "commit": "abc", "machine": "m", "torch": "2", "threads": 1, "results": [comparison]}
    for text in (standings.table(comparison), standings.page(record)):
        assert all(
            word in text for word in (*times, "4.00", "3.00 (2.50–3.50)", "OpenVINO", "openvino is not installed")
        )
    labels = [label.get_text() for label in standings.draw([comparison]).axes[0].get_yticklabels()]
    assert labels == ["vitreous, int8", "timm"]
