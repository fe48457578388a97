"""Hostile and huge files: refused in one line, at once, and before memory is taken for what they claim."""

import errno
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import vitreous as vt
from tests.parity import fill
from vitreous.models import FAMILIES
from vitreous.weights.bounds import check_blocks, check_bounds
from vitreous.weights.formats import strict_json

ROOT = Path(__file__).parents[2]


def ours(path, **changes):
    """A file of ours with another config."""
    model = fill(vt.create_model("vit_tiny_16", depth=2, dim=48, image_size=32, num_classes=3))
    vt.save(model, path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    metadata |= {"config": json.dumps(json.loads(metadata["config"]) | changes)}
    safetensors.torch.save_file(model.state_dict(), path, metadata)


def family(path, name, **changes):
    """A few tensors, and the config of another family."""
    config = FAMILIES[name].config().override().to_json() | changes
    spec = vt.Spec(labels=vt.Labels()).to_json()
    told = {"config": config, "edits": [], "spec": spec}
    metadata = {"format": "vitreous", "version": "2", "family": name, **{k: json.dumps(v) for k, v in told.items()}}
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, metadata)


def header(path, tensors, data=b""):
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor(shape, start, end):
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def many(path):
    """More tensors than any model has, each of them nothing."""
    header(path, {str(index): tensor([0], 0, 0) for index in range(100_000)})


def sparse(path, shape=(10**11,)):
    """400 GB that take no place on the disk."""
    size = 4 * shape[0]
    text = json.dumps({"cls_token": tensor(list(shape), 0, size)}).encode()
    header(path, text)
    os.truncate(path, 8 + len(text) + size)


def edits(path):
    ours(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    safetensors.torch.save_file(tensors, path, metadata | {"edits": json.dumps(["fold"] * 100_000)})


def nan_in_spec(path):
    ours(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    spec = metadata["spec"].replace("0.485", "NaN")
    safetensors.torch.save_file(tensors, path, metadata | {"spec": spec})


HUGE = {
    "channels": (lambda p: ours(p, num_channels=10**8), "num_channels must be at most"),
    "image": (lambda p: ours(p, image_size=[10**6, 10**6]), "image_size must be at most"),
    "cells": (lambda p: ours(p, image_size=[16384, 16384], patch_size=[1, 1]), "268,435,456 patches; at most"),
    "depth": (lambda p: ours(p, depth=10**5), "depth must lie between 1 and 1024"),
    "blocks": (lambda p: ours(p, depth=1000), "the config has 1,000 blocks but the file only 32 tensors"),
    "width": (lambda p: ours(p, dim=999_999), "does not fit ViT"),
    "registers": (lambda p: ours(p, num_registers=10**6), "does not fit ViT"),
    "classes": (lambda p: ours(p, num_classes=10**7), "does not fit ViT"),
    "heads": (lambda p: ours(p, num_heads=10**9, dim=10**9), "must be at most"),
    "mixer": (lambda p: ours(p, mixer={"mixer": "performer", "num_features": 10**7}), "num_features must be"),
    "window": (lambda p: ours(p, mixer={"mixer": "window", "size": 10**6}), "does not fit ViT"),
    "positions": (lambda p: ours(p, position="relative", image_size=[8192, 8192], patch_size=[8, 8]), "does not fit"),
    "stages": (lambda p: family(p, "swin", depths=[1000, 2, 6, 2]), "the config has 1,010 blocks but"),
    "segmenter": (
        lambda p: family(p, "segmenter", backbone={"family": "vit", "depth": 1000}),
        "blocks but the file only 1 tensors",
    ),
    "edits": (edits, "at most 256 edits, got 100,000"),
    "NaN": (nan_in_spec, "numbers must be finite, got NaN"),
    "overlapping": (lambda p: header(p, {"a": tensor([4], 0, 16), "b": tensor([4], 8, 24)}, bytes(24)), "damaged"),
    "shape beyond the file": (lambda p: header(p, {"a": tensor([10**9], 0, 16)}, bytes(16)), "damaged"),
    "shape beyond numbers": (lambda p: header(p, {"a": tensor([2**40, 2**40], 0, 16)}, bytes(16)), "damaged"),
    "offsets beyond the file": (lambda p: header(p, {"a": tensor([10**9], 0, 4 * 10**9)}, bytes(16)), "damaged or"),
    "a header of 10^15 bytes": (lambda p: p.write_bytes(struct.pack("<Q", 10**15) + b"{" + bytes(99)), "damaged"),
    "a nested header": (lambda p: header(p, b'{"__metadata__":' + b"[" * 10**6), "damaged or truncated"),
    "many tensors": (many, "at most 65,536 tensors, got 100,000"),
    "a hole of 400 GB": (sparse, "does not contain a known|cannot be mapped"),
    "a hole of 400 GB.foreign": (sparse, "does not fit|cannot be mapped"),
    "zero-sized": (lambda p: header(p, {"cls_token": tensor([0, 10**17], 0, 0)}), "does not contain a known model"),
    "zero-sized.foreign": (lambda p: header(p, {"cls_token": tensor([0, 10**17], 0, 0)}), "does not fit"),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What one process says to all of them."""
    folder, paths = tmp_path_factory.mktemp("hostile"), []
    for kind, (write, _) in HUGE.items():
        paths.append(folder / f"{kind.replace(' ', '_').replace('^', '')}.safetensors")
        if kind.endswith(".foreign"):
            paths[-1] = paths[-1].with_name(paths[-1].name.replace(".safetensors", ".x.safetensors"))
        write(paths[-1])
    command = [sys.executable, "-m", "tests.weights.hostile", *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(zip(HUGE, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("kind", HUGE)
def test_refused_in_one_line_at_once_and_in_little_memory(kind, said):
    answer = said[kind]
    assert re.search(HUGE[kind][1], answer["said"])
    assert "\n" not in answer["said"]
    assert answer["seconds"] < 3
    assert answer["megabytes"] < 150


def test_special_files_are_refused_and_nothing_waits_for_them(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "loop.safetensors").symlink_to(tmp_path / "loop.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    said = {"pipe": "not a regular file", "device": "not a regular file", "loop": "symbolic links"}
    for name, message in said.items():
        for load in (vt.load, lambda path: vt.load_weights(vt.create_model("vit_tiny_16", depth=1), path)):
            with pytest.raises(ValueError, match=f"cannot read .*{name}.safetensors: .*{message}"):
                load(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("place", ["", "folder"])
def test_unreadable_weights_are_one_line(place, tmp_path, monkeypatch):
    path = tmp_path / place / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    ours(path)
    whole = os.open

    def refuse(name, *args, **options):
        if os.fspath(name).endswith("model.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return whole(name, *args, **options)

    monkeypatch.setattr("vitreous.files.os.open", refuse)
    with pytest.raises(ValueError, match=r"cannot read .*model.safetensors: Permission denied"):
        vt.load(path.parent if place else path)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_that_there_is_lies_far_within_the_bounds(name):
    for config in FAMILIES[name].variants.values():
        check_bounds(config.override(image_size=1024, num_channels=256))
        check_blocks(config, 300)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "[" * 100_000])
def test_what_is_no_json(text):
    with pytest.raises((ValueError, RecursionError)):
        strict_json(text)
    assert strict_json('{"a": [1, 0.5, 1e3]}') == {"a": [1, 0.5, 1000.0]}
