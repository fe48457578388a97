"""Compact fingerprints of a run's data, by which a resumed run detects changes.

``data.json`` holds the class names in order, and for the training and validation images each their number and a digest.
Image files additionally have an 8-byte row each: 6 bytes hash the name relative to the data folder, 2 bytes hash class
and file size, so that added, removed and changed files can be counted. For a few files the content is hashed too.
Timestamps and the data folder are ignored: a copy elsewhere has the same fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Arrays, Dataset
from vitreous.data.encoded import EncodedDataset
from vitreous.data.folder import PathDataset
from vitreous.data.memory import DecodedDataset
from vitreous.data.shards import ShardDataset
from vitreous.data.splits import stable_names
from vitreous.runs.prepare import Prepared
from vitreous.samples import Classes

SAMPLED = 16  # images per split whose content is hashed
Rows = NDArray[np.uint64]


def no_rows() -> Rows:
    return np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True)
class SplitFingerprint:
    """The fingerprint of a split; ``rows`` (sorted) and ``samples`` (name → content digest) only for image files."""

    images: int
    digest: str
    rows: Rows = field(default_factory=no_rows)
    samples: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"images": self.images, "digest": self.digest, "samples": self.samples, "rows": encode_rows(self.rows)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SplitFingerprint:
        return cls(int(data["images"]), str(data["digest"]), decode_rows(data["rows"]), dict(data["samples"]))


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a run's data; ``removed_rows`` are training images that have since been removed."""

    classes: tuple[str, ...]
    train: SplitFingerprint
    valid: SplitFingerprint
    removed_rows: Rows = field(default_factory=no_rows)

    def to_bytes(self) -> bytes:
        parts = {
            "train": self.train.to_json(),
            "valid": self.valid.to_json(),
            "earlier": encode_rows(self.removed_rows),
        }
        return json.dumps({"classes": self.classes, **parts}, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Fingerprint:
        """Parse ``data.json``; raise ValueError if it is invalid."""
        try:
            data = json.loads(content)
            train, valid = (SplitFingerprint.from_json(data[name]) for name in ("train", "valid"))
            return cls(tuple(map(str, data["classes"])), train, valid, decode_rows(data["earlier"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a data fingerprint ({type(error).__name__})") from None


def encode_rows(rows: Rows) -> str:
    return base64.b64encode(rows.astype("<u8").tobytes()).decode()


def decode_rows(text: str) -> Rows:
    return np.frombuffer(base64.b64decode(text), dtype="<u8").astype(np.uint64)


def fingerprint(prepared: Prepared, source: object) -> Fingerprint:
    """Compute the fingerprint of prepared data; if ``source`` is a path, file names are relative to it."""
    path = Path(source).expanduser() if isinstance(source, str | Path) else None
    root = path if path is None or path.is_dir() else path.parent
    return Fingerprint(
        prepared.train.classes, split_fingerprint(prepared.train, root), split_fingerprint(prepared.valid, root)
    )


def split_fingerprint(data: Dataset | None, root: Path | None) -> SplitFingerprint:
    data = data.data if isinstance(data, DecodedDataset) else data
    if data is None:
        return SplitFingerprint(0, "")
    if isinstance(data, EncodedDataset):
        return files_fingerprint(data, stable_names(data, root) or [])
    digest = hashlib.blake2b(digest_size=16)
    for piece in content_chunks(data):
        digest.update(piece)
    return SplitFingerprint(len(data), digest.hexdigest())


def content_chunks(data: Dataset, chunk: int = 1000) -> Iterator[bytes]:
    """Yield the bytes to hash: pixels and targets of images in memory, otherwise locations and class labels."""
    if not isinstance(data, Arrays):
        yield from (data.location(index).encode(errors="replace") + b"\n" for index in range(len(data)))
        if (
            data.target is Classes and type(data).class_labels is not Dataset.class_labels
        ):  # stored labels, not computed from every image
            yield repr(data.class_labels(np.arange(len(data))).tolist()).encode()
        return
    for start in range(0, len(data), chunk):
        indices = np.arange(start, min(start + chunk, len(data)))
        targets = data.targets(indices)
        yield np.ascontiguousarray(data.pixels(indices)).tobytes()
        yield targets.values.numpy().tobytes() if isinstance(targets, Classes) else b""


def files_fingerprint(data: EncodedDataset, names: list[str]) -> SplitFingerprint:
    about = (
        f"{np.asarray(label).tolist()} {size}".encode()
        for label, size in zip(data.labels, file_sizes(data), strict=True)
    )
    rows = np.array(
        [short_hash(encoded(name), 6) << 16 | short_hash(other, 2) for name, other in zip(names, about, strict=True)],
        np.uint64,
    )
    chosen = np.argsort(rows, kind="stable")
    samples = {names[index]: content_digest(data, int(index)) for index in chosen[:SAMPLED]}
    digest = hashlib.blake2b(rows[chosen].astype("<u8").tobytes(), digest_size=16).hexdigest()
    return SplitFingerprint(len(data), digest, rows[chosen], samples)


def encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def file_sizes(data: EncodedDataset) -> list[int]:
    """Return the size of every image file in bytes, 0 for missing ones."""
    if isinstance(data, PathDataset):
        return [path.stat().st_size if path.is_file() else 0 for path in data.paths]
    return data.spans[:, 2].tolist() if isinstance(data, ShardDataset) else [0] * len(data)


def content_digest(data: EncodedDataset, index: int) -> str:
    """Hash an image file's content; return an empty string if it cannot be read."""
    try:
        return hashlib.blake2b(data.content(index), digest_size=16).hexdigest()
    except OSError:
        return ""


def short_hash(content: bytes, size: int) -> int:
    """Return a hash of ``size`` bytes as an integer."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=size).digest(), "big")


def compare_fingerprints(before: Fingerprint, now: Fingerprint) -> tuple[Fingerprint, list[str]]:
    """Compare a run's data with the data of a resume.

    Returns:
        The fingerprint to store from now on, and notes for the user.

    Raises:
        ValueError: If resuming would make scores invalid.
    """
    if before.classes != now.classes:
        raise ValueError(describe_class_change(before.classes, now.classes))
    if problem := training_problem(before.train, now.train) or validation_problem(before, now):
        raise ValueError(problem)
    if before.train.digest == now.train.digest:
        return Fingerprint(now.classes, now.train, now.valid, before.removed_rows), []
    added, gone = added_and_removed(before.train.rows, now.train.rows)
    note = (
        f"{len(added):,} training images were added and {len(gone):,} removed since the run started; the validation "
        "images are the same, but batches and the number of steps per epoch differ from those of the original run"
    )
    return Fingerprint(now.classes, now.train, now.valid, np.union1d(before.removed_rows, gone)), [note]


def describe_class_change(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(before) != len(now):
        return f"there were {len(before)} classes, now there are {len(now)}"
    index = next(index for index, names in enumerate(zip(before, now, strict=True)) if names[0] != names[1])
    return f"class {index} was {before[index]!r}, now it is {now[index]!r}"


def training_problem(before: SplitFingerprint, now: SplitFingerprint) -> str:
    """Describe the problem with the training images, if any; they may be added and removed, but not change."""
    if before.digest != now.digest and not (len(before.rows) and len(now.rows)):
        return "the training images differ"
    if number := len(changed_names(before.rows, now.rows)):
        return f"{number:,} of {now.images:,} training images have a different class or file size"
    if name := find_changed_sample(before, now):
        return f"the content of the training image {name} has changed"
    if 2 * len(added_and_removed(before.rows, now.rows)[1]) > len(before.rows):
        return "most of the training images have been removed"
    return ""


def validation_problem(before: Fingerprint, now: Fingerprint) -> str:
    """Describe the problem with the validation images, if any; they must be the same for comparable scores."""
    old, new = before.valid, now.valid
    if old.digest == new.digest:
        name = find_changed_sample(old, new)
        return f"the content of the validation image {name} has changed" if name else ""
    trained = np.setdiff1d(
        np.union1d(name_hashes(before.train.rows), name_hashes(before.removed_rows)), name_hashes(old.rows)
    )
    if number := len(np.intersect1d(trained, name_hashes(new.rows))):
        return f"{number:,} of {new.images:,} validation images have been trained on"
    if number := len(changed_names(old.rows, new.rows)):
        return f"{number:,} of {new.images:,} validation images have a different class or file size"
    added, gone = added_and_removed(old.rows, new.rows)
    if len(added) or len(gone):
        return f"{len(added):,} validation images were added and {len(gone):,} removed, so scores are not comparable"
    return "the validation images differ"


def count_trained_on(fingerprint: Fingerprint, data: Dataset, root: Path | None) -> int:
    """Count the images of a dataset that a run was trained on: files of the same name, class and size."""
    own = split_fingerprint(data, root)
    if own.digest == fingerprint.train.digest:
        return own.images
    return len(np.intersect1d(np.union1d(fingerprint.train.rows, fingerprint.removed_rows), own.rows))


def name_hashes(rows: Rows) -> Rows:
    """Return the unique name hashes, the upper 6 bytes of the rows."""
    return np.unique(rows >> np.uint64(16))


def changed_names(before: Rows, now: Rows) -> Rows:
    """Return the name hashes present in both, but with a different class or file size."""
    common = np.intersect1d(name_hashes(before), name_hashes(now))
    return np.setdiff1d(common, name_hashes(np.intersect1d(before, now)))


def added_and_removed(before: Rows, now: Rows) -> tuple[Rows, Rows]:
    """Return the rows whose names were added, and those whose names were removed."""
    added = now[~np.isin(now >> np.uint64(16), name_hashes(before))]
    return added, before[~np.isin(before >> np.uint64(16), name_hashes(now))]


def find_changed_sample(before: SplitFingerprint, now: SplitFingerprint) -> str:
    """Return the name of a sampled image whose content has changed, or an empty string."""
    both = ((name, digest, now.samples.get(name)) for name, digest in before.samples.items())
    return next((name for name, old, new in both if old and new and old != new), "")
