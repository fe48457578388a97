"""Torch checkpoints as training scripts leave them: read with all their company, executed never."""

import argparse
import datetime
import io
import pathlib
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

import vitreous as vt
from tests.parity import fill
from vitreous.weights.pickled import SAFE_GLOBALS, Stub


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 2, "image_size": 64, "num_classes": 5} | overrides)))


def timm_training(weights, averaged):
    """What timm's CheckpointSaver writes."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    return {
        "epoch": 7,
        "arch": "vit_tiny_patch16_224",
        "state_dict": weights,
        "optimizer": optimizer.state_dict(),
        "version": 2,
        "args": argparse.Namespace(lr=1e-3, data_dir=pathlib.PurePosixPath("/data"), seeds=[1, 2]),
        "amp_scaler": {"scale": 65536.0},
        "state_dict_ema": averaged,
        "metric": np.float64(81.25),
        "history": np.arange(5, dtype=np.float32),
        "best": {"top1": np.float32(1.5), "epoch": np.int64(3)},
    }


def test_timms_training_checkpoint(tmp_path):
    """The averaged weights are read, as timm itself does; not one foreign object is built."""
    weights, averaged = tiny(), fill(tiny(), seed=1)
    torch.save(timm_training(weights.state_dict(), averaged.state_dict()), tmp_path / "last.pth.tar")
    model = tiny()
    report = vt.load_weights(model, tmp_path / "last.pth.tar")
    assert torch.equal(model.head.weight, averaged.head.weight)
    assert "  read from 'state_dict_ema'" in str(report).splitlines()


def test_without_averaged_weights_the_others(tmp_path):
    weights = tiny()
    torch.save(timm_training(weights.state_dict(), None), tmp_path / "last.pth")
    model = fill(tiny(), seed=1)
    assert vt.load_weights(model, tmp_path / "last.pth").notes == ["read from 'state_dict'"]
    assert torch.equal(model.head.weight, weights.head.weight)


def below(*prefixes):
    return lambda state: {"".join(prefixes) + name: tensor for name, tensor in state.items()}


WRAPPINGS = {
    "Lightning": lambda s: {
        "state_dict": below("model.")(s),
        "pytorch-lightning_version": "2.5.0",
        "hyper_parameters": {"lr": 0.1, "folder": pathlib.PurePosixPath("x")},
        "hparams_name": "kwargs",
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "seen": {1, 2}}},
    },
    "nested": lambda s: {"model": {"state_dict": s, "epoch": 3}},
    "scalars beside": lambda s: {**s, "epoch": 3, "accuracy": np.float64(0.5)},
    "torchvision's average": lambda s: {"model_ema": {"n_averaged": torch.tensor(9), **below("module.")(s)}},
    "protocol": lambda s: {"model": OrderedDict(s), "date": datetime.datetime(2024, 1, 1)},
    "parameters": lambda s: {"model": {name: torch.nn.Parameter(tensor) for name, tensor in s.items()}},
}


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_what_checkpoints_wrap_weights_in(kind, tmp_path):
    source, model = tiny(), fill(tiny(), seed=1)
    torch.save(WRAPPINGS[kind](source.state_dict()), tmp_path / "model.ckpt")
    vt.load_weights(model, tmp_path / "model.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), source.parameters(), strict=True))


def test_the_files_of_older_torch_versions(tmp_path):
    source, model = tiny(), fill(tiny(), seed=1)
    torch.save({"model": source.state_dict()}, tmp_path / "model.pth", _use_new_zipfile_serialization=False)
    vt.load_weights(model, tmp_path / "model.pth")
    assert torch.equal(model.head.weight, source.head.weight)


class Setting:
    """A class of somebody's training script."""


class Caller:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


class Finder:
    def __reduce__(self):
        return __import__, ("os",)


@pytest.mark.parametrize(
    ("extra", "asked"),
    [
        (Setting(), "tests.weights.test_checkpoints.Setting"),
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (Finder(), "__import__"),
    ],
)
def test_anything_else_is_refused_by_its_name(extra, asked, tmp_path):
    torch.save({"model": tiny().state_dict(), "extra": extra}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=f"refers to {asked}, and Vitreous never executes code") as caught:
        vt.load_weights(tiny(), tmp_path / "model.pt")
    assert "\n" not in str(caught.value)
    assert not set(SAFE_GLOBALS) & set(torch.serialization.get_safe_globals())


def test_harmless_names_are_not_what_they_are_called(tmp_path):
    """A stub replaces each of them, so that no argument reaches the real one and no method of it can be called."""
    trap = tmp_path / "executed"
    torch.save({"model": Caller(pathlib.PosixPath(trap))}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="Vitreous never executes code"):
        vt.load_weights(tiny(), tmp_path / "model.pt")
    assert not trap.exists()
    stub = Stub(1, two=2)
    stub.__setstate__({"dangerous": True})
    assert vars(stub) == {}


def save_expanded(path):
    state = tiny().state_dict()
    torch.save(state | {"head.weight": torch.zeros(1).expand(10**9, 10**6)}, path)


def save_quantized(path):
    torch.save({"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, path)


def save_compressed(path):
    """An archive that grows a thousandfold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", pickle.dumps({"x": "0" * 10**7}, protocol=2))


ODD = {
    "whole numbers for names": (lambda p: torch.save({0: torch.zeros(3)}, p), "tensor names must be strings, got 0"),
    "expanded": (save_expanded, "head.weight claims the shape .*larger than the file"),
    "sparse": (lambda p: torch.save({"a": torch.eye(3).to_sparse()}, p), "a is sparse_coo, not a plain tensor"),
    "sparse rows": (lambda p: torch.save({"a": torch.eye(3).to_sparse_csr()}, p), "sparse_csr, not a plain tensor"),
    "quantized": (save_quantized, "a is quantized, not a plain tensor"),
    "meta": (lambda p: torch.save({"a": torch.zeros(3, device="meta")}, p), "a is without values"),
    "zero-sized": (lambda p: torch.save({"a": torch.zeros(0)}, p), "does not fit ViT"),
    "no tensors": (lambda p: torch.save({"epoch": 3}, p), "does not contain a state_dict"),
    "a list": (lambda p: torch.save([1, 2], p), "does not contain a state_dict"),
    "compressed": (save_compressed, "is compressed, but torch.save never compresses"),
    "cut off": (lambda p: (torch.save(tiny().state_dict(), p), p.write_bytes(p.read_bytes()[:-5000])), "damaged"),
    "a huge storage": (lambda p: p.write_bytes(huge_storage()), "damaged"),
}  # fmt: skip


def huge_storage():
    """An old checkpoint whose one storage claims 10^15 floats."""

    class Saver(pickle.Pickler):
        def persistent_id(self, given):
            return ("storage", torch.FloatStorage, "0", "cpu", 10**15, None) if given == "here" else None

    stream = io.BytesIO()
    for value in (MAGIC_NUMBER, PROTOCOL_VERSION, {"little_endian": True}):
        pickle.dump(value, stream, protocol=2)
    Saver(stream, protocol=2).dump({"a": "here"})
    pickle.dump(["0"], stream, protocol=2)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ODD)
def test_odd_contents_are_one_line(kind, tmp_path):
    write, message = ODD[kind]
    write(tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message) as caught:
        vt.load_weights(tiny(), tmp_path / "model.pt")
    assert "\n" not in str(caught.value)
