"""What the benchmark makes of its times: ratios, spread, shares, and the names of those who could not run."""

import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import inference, interleave, standings
from benchmarks.rivals import Contestant, Course


def test_spread_is_of_ratios_within_rounds():
    """A round that is slow for everybody changes nothing."""
    seconds = {"base": [2.0, 200.0, 4.0, 6.0, 8.0], "own": [2.0, 100.0, 1.0, 2.0, 1.0]}
    assert interleave.spread(seconds, "base") == {"base": (1, 1, 1), "own": (2, 3, 4)}


def test_rounds_fill_the_budget_and_the_best_pass_of_a_turn_counts(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(name, *durations):
        def one_pass():
            clock[0] += durations[order.count(name) % len(durations)]
            order.append(name)

        return one_pass

    contestants = {"slow": run("slow", 0.5), "quick": run("quick", 0.05, 0.03, 0.04)}
    seconds = interleave.interleave_for(2.0, contestants, fewest=2, turn=0.1)
    assert seconds == {"slow": [0.5] * 4, "quick": [pytest.approx(0.03)] * 4}
    assert order.count("quick") == 12
    assert len(interleave.interleave_for(0.0, contestants, fewest=2)["slow"]) == 2


@pytest.fixture
def course(tmp_path):
    reference = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).eval()
    return Course("vit_tiny_16", reference, torch.randn(2, 3, 2, 2), tmp_path)


def near(course):
    return lambda images: 1.1 * course.reference(images)


def missing(course):
    import no_such_package  # noqa: F401


def wrong(course):
    return lambda images: images.reshape(7, 7)


def unwilling(course):
    raise ValueError("not on a Tuesday\nand more")


def speechless(course):
    raise ValueError


def test_who_cannot_run_is_named_with_the_reason(course, monkeypatch):
    entries = [Contestant("timm", lambda course: course.reference), Contestant("near", near, "int8")]
    entries += [Contestant(build.__name__, build) for build in (missing, wrong, unwilling, speechless)]
    monkeypatch.setattr(inference, "CONTESTANTS", [*entries, Contestant("stranger", near, same_weights=False)])
    runners, rows, absent = inference.line_up(course, Console(quiet=True))
    assert [row["name"] for row in rows] == list(runners) == ["timm", "near", "stranger"]
    assert [row["error"] for row in rows] == [0, pytest.approx(0.1, rel=1e-4), None]
    assert absent["missing"] == "no_such_package is not installed"
    assert absent["wrong"].startswith("RuntimeError: shape")
    assert absent["unwilling"] == "not on a Tuesday"
    assert absent["speechless"] == "no reason given"


def test_a_report_says_what_was_chosen(course):
    class Fast(nn.Sequential):
        report = SimpleNamespace(precision="int8", engine="native")

    contestant = Contestant("ours", lambda course: Fast(course.reference), "auto")
    _, row = inference.enter(contestant, course, course.reference(course.images).detach())
    assert (row["precision"], row["engine"]) == ("int8", "native")


def test_shares_are_of_the_limit_in_the_same_precision():
    limits = {"fp32": 100.0, "int8": 400.0}
    shares = [
        inference.share({"images_per_second": 5, "precision": name}, 10, limits) for name in ("fp32", "int8", "bf16")
    ]
    assert shares == [0.5, 0.125, None]


@pytest.mark.parametrize(("name", "billions"), [("vit_base_16", 35.13), ("swin_tiny", 8.98)])
def test_operations_are_those_of_all_images(name, billions, tmp_path):
    """As published for 224 pixels, twice the multiply-adds."""
    course = Course(name, nn.Identity(), torch.empty(8, 3, 224, 224), tmp_path)
    assert course.operations / 8e9 == pytest.approx(billions, rel=1e-3)


def test_a_library_without_the_model_says_so(tmp_path):
    course = Course("swin_tiny", nn.Identity(), torch.empty(1), tmp_path)
    with pytest.raises(ValueError, match="vit-pytorch has no swin_tiny"):
        course.vit_size("vit-pytorch")


def test_every_row_and_every_absence_is_shown():
    times = {"timm": [2.0, 2.0], "vitreous, int8": [1.0, 0.5]}
    rows = [{"name": name, "precision": "fp32", "engine": None, "error": None, "share": None} for name in times]
    rows = [row | inference.timing(times, row["name"], 8) for row in rows]
    race = {"model": "vit_tiny_16", "batch": 8, "rounds": 2, "limits": {"fp32": 1e11}, "rows": rows}
    race["absent"] = {"OpenVINO": "openvino is not installed"}
    assert (rows[1]["images_per_second"], rows[1]["speed_up"], rows[1]["median"]) == (16, 4, 3)
    record = {"command": "c", "commit": "abc", "machine": "m", "torch": "2", "threads": 1, "results": [race]}
    for text in (standings.table(race), standings.page(record)):
        assert all(
            word in text for word in (*times, "4.00", "3.00 (2.50–3.50)", "OpenVINO", "openvino is not installed")
        )
    labels = [label.get_text() for label in standings.draw([race]).axes[0].get_yticklabels()]
    assert labels == ["vitreous, int8", "timm"]
