"""Read the folder of a run; missing files are skipped, damaged ones are noted.

config.json      the resolved recipe
log.jsonl        one object per line: step, kind ("train" or "valid"), loss, accuracy, lr, …
result.json      final measures, seconds, images, parameters, threads, seed, commit
classes.json     names in the order of the logits
predictions.npz  logits (n, k), targets (n, k); labels (n,) and best classes (n, 5) where there are more than 5,000;
                 for masks the confusion matrix (k, k) of all pixels
mistakes.npz     images (m, c, y, x) bytes; true, predicted, probability (m,); attention (m, v, w) if the model has any
examples.npz     for masks: images (m, c, y, x) bytes; true, predicted (m, y, x)
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """Logits and targets of the validation images."""

    logits: NDArray[np.float32]
    targets: NDArray[np.float32]

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.targets.argmax(axis=1)


@dataclass(frozen=True)
class RunFolder:
    """The contents of a run's folder. Missing parts are empty; ``notes`` lists what could not be read."""

    config: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    predictions: Predictions | None = None
    confusion: NDArray[np.int64] | None = None  # counts of pixels
    mistakes: dict[str, NDArray[Any]] = field(default_factory=dict)
    examples: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def measures(self) -> dict[str, Any]:
        """The final measures, or those of the last validation while the run is unfinished."""
        validations = [entry for entry in self.log if entry.get("kind") == "valid"]
        return (validations[-1] if validations else {}) | self.result

    @property
    def task(self) -> str:
        """The recorded task; for older runs inferred from the measures."""
        return str(self.result.get("task", "multilabel" if "auroc" in self.measures else "classify"))

    def name(self, index: int) -> str:
        return self.classes[index] if index < len(self.classes) else f"class {index}"

    def line(self, kind: str, key: str) -> tuple[list[float], list[float]]:
        """Steps and values of one measure in the log."""
        chosen = [entry for entry in self.log if entry.get("kind") == kind and is_number(entry.get(key))]
        return [entry["step"] for entry in chosen], [entry[key] for entry in chosen]


#: What predictions.npz may hold, depending on the task and the number of classes.
PREDICTIONS = (("logits", "targets"), ("confusion",), ("labels", "predicted"))


def read_run_folder(folder: Path) -> RunFolder:
    notes: list[str] = []
    predictions = read_arrays(folder / "predictions.npz", notes, needed=PREDICTIONS)
    return RunFolder(
        config=read_json(folder / "config.json", notes, {}),
        log=read_log(folder / "log.jsonl", notes),
        result=read_json(folder / "result.json", notes, {}),
        classes=tuple(str(name) for name in read_json(folder / "classes.json", notes, [])),
        predictions=Predictions(predictions["logits"], predictions["targets"]) if "logits" in predictions else None,
        confusion=predictions.get("confusion"),
        mistakes=read_arrays(folder / "mistakes.npz", notes, needed=(("images", "true", "predicted", "probability"),)),
        examples=read_arrays(folder / "examples.npz", notes, needed=(("images", "true", "predicted"),)),
        notes=notes,
    )


def read_json(path: Path, notes: list[str], absent: Any) -> Any:
    """Read a JSON file; return ``absent``, and note the damage, if it is not of the type of ``absent``."""
    if not path.is_file():
        return absent
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError:
        content = None
    if isinstance(content, type(absent)):
        return content
    notes.append(f"{path.name} is damaged and was skipped.")
    return absent


def read_log(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read one entry per line; a truncated last line, from an interrupted run, is not reported as damage."""
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    entries, broken = [], 0
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            broken += number < len(lines)
            continue
        if isinstance(entry, dict) and "step" in entry:
            entries.append(entry)
    if broken:
        notes.append(f"{broken} damaged lines of {path.name} were skipped.")
    return entries


def read_arrays(path: Path, notes: list[str], *, needed: tuple[tuple[str, ...], ...]) -> dict[str, NDArray[Any]]:
    """Read an npz file that must contain one of the sets of names in ``needed``, with arrays of equal length."""
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        arrays = {}
    for names in needed:
        if all(name in arrays for name in names) and len({len(arrays[name]) for name in names}) == 1:
            return arrays if len(arrays[names[0]]) else {}
    notes.append(f"{path.name} is damaged or incomplete and was skipped.")
    return {}


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
