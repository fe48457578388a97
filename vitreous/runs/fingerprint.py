"""What the data of a run are, in few bytes, so that a resumed run notices when they are others.

``data.json`` holds the class names in order and, of the training and the validation images each, their number and a
digest. Images in files have a row of 8 bytes besides: 6 of the digest of the name below the data's folder, 2 of that of
class and size, so that what came, went or changed can be counted. A few have a digest of their content. Times and the
folder itself do not count: a copy elsewhere is the same data.
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
from vitreous.data.encoded import Encoded
from vitreous.data.folder import Files
from vitreous.data.memory import Decoded
from vitreous.data.shards import Shards
from vitreous.data.splits import names_of
from vitreous.runs.prepare import Prepared
from vitreous.samples import Classes

SAMPLED = 16  # images of a split whose content is digested
Rows = NDArray[np.uint64]


def no_rows() -> Rows:
    return np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True)
class Part:
    """The images of a split; ``rows`` and ``samples`` only where they are files."""

    images: int
    digest: str
    rows: Rows = field(default_factory=no_rows)
    samples: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"images": self.images, "digest": self.digest, "samples": self.samples, "rows": packed(self.rows)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Part:
        return cls(int(data["images"]), str(data["digest"]), unpacked(data["rows"]), dict(data["samples"]))


@dataclass(frozen=True)
class Fingerprint:
    """The data of a run; ``earlier`` are the rows of images that it has trained on and that are gone."""

    classes: tuple[str, ...]
    train: Part
    valid: Part
    earlier: Rows = field(default_factory=no_rows)

    def to_bytes(self) -> bytes:
        parts = {"train": self.train.to_json(), "valid": self.valid.to_json(), "earlier": packed(self.earlier)}
        return json.dumps({"classes": self.classes, **parts}, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Fingerprint:
        """ValueError where these are no such bytes."""
        try:
            data = json.loads(content)
            train, valid = (Part.from_json(data[name]) for name in ("train", "valid"))
            return cls(tuple(map(str, data["classes"])), train, valid, unpacked(data["earlier"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no fingerprint of data ({type(error).__name__})") from None


def packed(rows: Rows) -> str:
    return base64.b64encode(rows.astype("<u8").tobytes()).decode()


def unpacked(text: str) -> Rows:
    return np.frombuffer(base64.b64decode(text), dtype="<u8").astype(np.uint64)


def fingerprint(prepared: Prepared, source: object) -> Fingerprint:
    """Of the data as a run uses them; names are taken below ``source`` where that is a path."""
    path = Path(source).expanduser() if isinstance(source, str | Path) else None
    root = path if path is None or path.is_dir() else path.parent
    return Fingerprint(prepared.train.classes, part_of(prepared.train, root), part_of(prepared.valid, root))


def part_of(data: Dataset | None, root: Path | None) -> Part:
    data = data.data if isinstance(data, Decoded) else data
    if data is None:
        return Part(0, "")
    if isinstance(data, Encoded):
        return part_of_files(data, names_of(data, root) or [])
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(data):
        digest.update(piece)
    return Part(len(data), digest.hexdigest())


def pieces(data: Dataset, chunk: int = 1000) -> Iterator[bytes]:
    """The pixels and targets of images in memory; of any others what they call themselves."""
    if not isinstance(data, Arrays):
        yield from (data.where(index).encode(errors="replace") + b"\n" for index in range(len(data)))
        if (
            data.target is Classes and type(data).class_labels is not Dataset.class_labels
        ):  # they are kept, not made anew for every image
            yield repr(data.class_labels(np.arange(len(data))).tolist()).encode()
        return
    for start in range(0, len(data), chunk):
        indices = np.arange(start, min(start + chunk, len(data)))
        targets = data.targets(indices)
        yield np.ascontiguousarray(data.pixels(indices)).tobytes()
        yield targets.values.numpy().tobytes() if isinstance(targets, Classes) else b""


def part_of_files(data: Encoded, names: list[str]) -> Part:
    about = (
        f"{np.asarray(label).tolist()} {size}".encode() for label, size in zip(data.labels, sizes(data), strict=True)
    )
    rows = np.array(
        [short(encoded(name), 6) << 16 | short(other, 2) for name, other in zip(names, about, strict=True)], np.uint64
    )
    chosen = np.argsort(rows, kind="stable")
    samples = {names[index]: content_digest(data, int(index)) for index in chosen[:SAMPLED]}
    digest = hashlib.blake2b(rows[chosen].astype("<u8").tobytes(), digest_size=16).hexdigest()
    return Part(len(data), digest, rows[chosen], samples)


def encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def sizes(data: Encoded) -> list[int]:
    """In bytes; 0 of a file that cannot be found."""
    if isinstance(data, Files):
        return [path.stat().st_size if path.is_file() else 0 for path in data.paths]
    return data.place[:, 2].tolist() if isinstance(data, Shards) else [0] * len(data)


def content_digest(data: Encoded, index: int) -> str:
    """Empty where nothing can be read."""
    try:
        return hashlib.blake2b(data.content(index), digest_size=16).hexdigest()
    except OSError:
        return ""


def short(content: bytes, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=size).digest(), "big")


def compare(before: Fingerprint, now: Fingerprint) -> tuple[Fingerprint, list[str]]:
    """What to remember from here on, and what is to be said; ValueError where going on would make scores wrong."""
    if before.classes != now.classes:
        raise ValueError(other_classes(before.classes, now.classes))
    if problem := wrong_training(before.train, now.train) or wrong_validation(before, now):
        raise ValueError(problem)
    if before.train.digest == now.train.digest:
        return Fingerprint(now.classes, now.train, now.valid, before.earlier), []
    added, gone = moved(before.train.rows, now.train.rows)
    note = (
        f"since the run began {len(added):,} training images were added and {len(gone):,} removed; the validation "
        "images are the same, but batches hold other images from here on than they would have, and the number of steps "
        "follows the number of images"
    )
    return Fingerprint(now.classes, now.train, now.valid, np.union1d(before.earlier, gone)), [note]


def other_classes(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(before) != len(now):
        return f"there were {len(before)} classes, now there are {len(now)}"
    place = next(place for place, names in enumerate(zip(before, now, strict=True)) if names[0] != names[1])
    return f"class {place} was called {before[place]!r}, now it is {now[place]!r}"


def wrong_training(before: Part, now: Part) -> str:
    """What is wrong with the training images, or nothing: they may come and go, but not change."""
    if before.digest != now.digest and not (len(before.rows) and len(now.rows)):
        return "the training images are others than before"
    if number := len(altered(before.rows, now.rows)):
        return f"{number:,} of {now.images:,} training images have another class or size than before"
    if name := other_sample(before, now):
        return f"the training image {name} has another content than before"
    if 2 * len(moved(before.rows, now.rows)[1]) > len(before.rows):
        return "most of the training images are gone"
    return ""


def wrong_validation(before: Fingerprint, now: Fingerprint) -> str:
    """What is wrong with the validation images, or nothing: they must be the same, or scores do not compare."""
    old, new = before.valid, now.valid
    if old.digest == new.digest:
        name = other_sample(old, new)
        return f"the validation image {name} has another content than before" if name else ""
    trained = np.setdiff1d(np.union1d(name_part(before.train.rows), name_part(before.earlier)), name_part(old.rows))
    if number := len(np.intersect1d(trained, name_part(new.rows))):
        return f"{number:,} of {new.images:,} validation images have been trained on"
    if number := len(altered(old.rows, new.rows)):
        return f"{number:,} of {new.images:,} validation images have another class or size than before"
    added, gone = moved(old.rows, new.rows)
    if len(added) or len(gone):
        return f"{len(added):,} validation images were added and {len(gone):,} removed, so that scores do not compare"
    return "the validation images are others than before"


def name_part(rows: Rows) -> Rows:
    return np.unique(rows >> np.uint64(16))


def altered(before: Rows, now: Rows) -> Rows:
    """Names that both have, but with another class or size."""
    common = np.intersect1d(name_part(before), name_part(now))
    return np.setdiff1d(common, name_part(np.intersect1d(before, now)))


def moved(before: Rows, now: Rows) -> tuple[Rows, Rows]:
    """Rows whose names were added, and those whose names are gone."""
    added = now[~np.isin(now >> np.uint64(16), name_part(before))]
    return added, before[~np.isin(before >> np.uint64(16), name_part(now))]


def other_sample(before: Part, now: Part) -> str:
    """The first image whose content was digested both times and differs."""
    both = ((name, digest, now.samples.get(name)) for name, digest in before.samples.items())
    return next((name for name, old, new in both if old and new and old != new), "")
