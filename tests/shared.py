"""Real weights and photos that lie beside the checkout; tests that need them skip where they are absent."""

import io
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(__file__).resolve().parents[2] / "shared"
DEIT_TINY = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"


def need_shared():
    if not SHARED.is_dir():
        reason = "no folder ../shared with real weights and photos beside the checkout"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def golden_images() -> list[tuple[str, Image.Image]]:
    return [(path.stem, Image.open(path)) for path in sorted((SHARED / "weights" / "images").glob("*.JPEG"))]


def golden_logits() -> dict[str, np.ndarray]:
    with np.load(SHARED / "weights" / "deit_tiny_golden_logits.npz") as file:
        return {key: file[key] for key in file}


def class_of(stem: str) -> int:
    """The class whose WordNet id starts the file's name."""
    index = json.loads((SHARED / "data" / "imagenet_class_index.json").read_text())
    return next(int(number) for number, (wnid, _) in index.items() if stem.startswith(wnid))


def photos() -> tuple[list[Image.Image], np.ndarray]:
    with np.load(SHARED / "data" / "nips17_dev_1000_299px.npz") as file:
        data, offsets, labels = file["data"], file["offsets"], file["labels"]
    files = [data[start:end].tobytes() for start, end in itertools.pairwise(offsets)]
    return [Image.open(io.BytesIO(content)) for content in files], labels
