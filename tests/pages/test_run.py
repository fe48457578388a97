"""The report of a run: complete for a complete folder, without missing parts otherwise, and safe for any names."""

import json
import re

import numpy as np
import pytest

from tests.pages.parser import Page
from vitreous.pages.run import write_report

CLASSES = ["cat", "dog", "<script>eel</script>", "$x_", "猫"]


SECTIONS = {
    "Learning curves",
    "Confusion matrix",
    "Most frequent confusions",
    "Per-class metrics",
    "Per-label metrics",
    "Calibration",
    "Most confident mistakes",
    "Settings",
}


def sections_of(page):
    return [word for word in page.words if word in SECTIONS]


def report(run):
    path = write_report(run)
    assert path == run / "report.html"
    return Page(path.read_text())


def write_log(run, *, score="accuracy"):
    lines = [
        json.dumps({"step": step, "kind": kind, "loss": 1 / step, score: 0.5, "lr": 1e-3, "seconds": step})
        for step in range(1, 1001)
        for kind in (("train", "valid") if step % 250 == 0 else ("train",))
    ]
    (run / "log.jsonl").write_text("\n".join([*lines, '{"step": 1001, "ki']))


def write_predictions(run, predicted, labels, num_classes=5):
    logits = 4 * np.eye(num_classes, dtype=np.float32)[predicted]
    np.savez(run / "predictions.npz", logits=logits, targets=np.eye(num_classes, dtype=np.float32)[labels])


def write_everything(run):
    """Of eight images six are predicted correctly."""
    write_log(run)
    (run / "config.json").write_text(json.dumps({"train": {"lr": 0.001, "betas": [0.9, 0.99]}, "name": "a & b"}))
    (run / "classes.json").write_text(json.dumps(CLASSES))
    facts = {"accuracy": 0.75, "loss": 0.4321, "seconds": 3725, "images": 7450, "parameters": 1234567, "seed": 3}
    (run / "result.json").write_text(json.dumps(facts))
    write_predictions(run, [0, 0, 1, 1, 2, 3, 4, 0], [0, 0, 0, 1, 2, 3, 4, 2])
    np.savez(
        run / "mistakes.npz",
        images=np.random.default_rng(0).integers(0, 256, (2, 3, 24, 16), dtype=np.uint8),
        attention=np.random.default_rng(0).random((2, 3, 2), dtype=np.float32),
        true=np.array([0, 2]),
        predicted=np.array([1, 0]),
        probability=np.array([0.987, 0.5]),
    )


@pytest.fixture
def run(tmp_path):
    write_everything(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a whole run."""
    run = tmp_path_factory.mktemp("my run", numbered=False)
    write_everything(run)
    return report(run)


def test_a_whole_run(page):
    assert sections_of(page) == [
        "Learning curves",
        "Confusion matrix",
        "Per-class metrics",
        "Calibration",
        "Most confident mistakes",
        "Settings",
    ]
    for words in ("my run", "seed 3", "75.00%", "0.432", "1 h 02 min", "1,234,567", "train.lr", "[0.9, 0.99]", "a & b"):
        assert words in page.text, words
    assert "images per second 2" in page.text
    assert "cat → dog confidence 99%" in page.text


def test_the_page_is_self_contained_and_escapes_names(page):
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert "<script>eel</script>" in page.text
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("data:", "#")), f"<{tag} {name}={value}>"
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_the_matrix_has_true_classes_as_rows_and_predictions_as_columns(page):
    cells = {a["title"]: a["class"] for tag, a in page.tags if tag == "td" and "title" in a}
    assert cells["cat predicted as cat: 2 (66.7%)"] == "right strong"
    assert cells["cat predicted as dog: 1 (33.3%)"] == "wrong"
    assert "dog predicted as cat: 1 (33.3%)" not in cells
    assert len(cells) == 7


def test_the_hardest_class_comes_first(run):
    (run / "log.jsonl").unlink()
    write_predictions(run, [0, 0, 1, 1], [0, 0, 0, 1])
    page = report(run)
    assert "images dog 100.0% 50.0% 66.7% 1 cat 66.7% 100.0% 80.0% 3 <script>eel</script> – – – 0" in page.text


def test_many_classes_show_their_commonest_confusions(run):
    (run / "log.jsonl").unlink()
    labels = np.repeat(np.arange(60), 4)
    predicted = labels.copy()
    predicted[:3], predicted[4] = 7, 0
    write_predictions(run, predicted, labels, num_classes=60)
    page = report(run)
    assert "true class predicted count fraction cat class 7 3 75.0% dog cat 1 25.0%" in page.text
    assert "matrix" not in [attributes.get("class") for _, attributes in page.tags]


def test_several_labels_have_metrics_each(run):
    write_log(run, score="auroc")
    targets = np.array([[1, 0, np.nan], [0, 1, 0], [1, 1, 0]], dtype=np.float32)
    logits = np.array([[2, 2, 0], [1, 1, 0], [3, 3, 0]], dtype=np.float32)
    np.savez(run / "predictions.npz", logits=logits, targets=targets)
    page = report(run)
    assert "Per-label metrics" in sections_of(page)
    assert not {"Confusion matrix", "Per-class metrics", "Calibration"} & set(sections_of(page))
    assert re.search(r"dog 0\.500 .* cat 1\.000 1\.000 2 1 0 .*<script>eel</script> – – 0 2 1", page.text)


@pytest.mark.parametrize(
    ("only", "headings"),
    [
        ("config.json", ["Settings"]),
        ("log.jsonl", ["Learning curves"]),
        ("predictions.npz", ["Confusion matrix", "Per-class metrics", "Calibration"]),
        ("mistakes.npz", ["Most confident mistakes"]),
        ("result.json", []),
    ],
)
def test_what_is_missing_is_left_out(run, only, headings):
    for path in run.iterdir():
        if path.name != only:
            path.unlink()
    page = report(run)
    assert sections_of(page) == headings
    assert "skipped" not in page.text


def test_what_is_damaged_is_left_out_with_a_note(run):
    for path in run.iterdir():
        path.write_bytes(b'{"st\n{"st\n')
    (run / "result.json").write_text('{"accuracy": 0.5}')
    page = report(run)
    assert sections_of(page) == []
    for name in ("config.json", "classes.json", "predictions.npz", "mistakes.npz"):
        assert f"{name} is damaged" in page.text
    assert "1 damaged lines of log.jsonl" in page.text


def test_a_diverged_run_still_has_a_report(run):
    np.savez(run / "predictions.npz", logits=np.full((2, 5), np.nan), targets=np.eye(5)[:2])
    (run / "log.jsonl").write_text(
        '{"step": 1, "kind": "train", "loss": 2.5}\n{"step": 2, "kind": "train", "loss": NaN}\n'
    )
    (run / "result.json").write_text('{"accuracy": NaN, "seconds": 2}')
    page = report(run)
    assert sections_of(page) == ["Learning curves", "Most confident mistakes", "Settings"]
    assert "diverged" in page.text


def test_mistakes_without_attention_show_the_image_alone(run, page):
    def images(page):
        return sum(tag == "img" for tag, _ in page.tags)

    assert images(page) == 4
    (run / "log.jsonl").unlink()
    with np.load(run / "mistakes.npz") as file:
        rest = {name: file[name] for name in file.files if name != "attention"}
    np.savez(run / "mistakes.npz", **rest | {"images": rest["images"][:, :1]})
    assert images(report(run)) == 2


def test_a_missing_or_empty_run_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="nothing to report"):
        write_report(tmp_path)
