"""Checkpoints that are whole or not there, and the newest whole one found again.

A checkpoint is its tensors (``step-00000500.safetensors``, or with sharded training a folder that
``torch.distributed.checkpoint`` writes) and a small JSON of the same name, written last, that holds sizes and digests.
Without its JSON a checkpoint does not count; with a wrong digest it is passed over for the one before.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor, distribute_tensor

from vitreous.files import file_digest, open_file, write_atomically
from vitreous.train.parallel import World

State = dict[str, Tensor]


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int, world: World) -> None:
        self.folder, self.keep, self.world = folder, keep, world
        #: What was wrong with those that were passed over, in words.
        self.complaints: list[str] = []

    def save(self, step: int, state: State, *, seconds: float = 0.0) -> Path | None:
        """The new checkpoint's description; None when it could not be written, with a complaint that says why."""
        name = f"step-{step:08}"
        sharded = any(isinstance(value, DTensor) for value in state.values())
        about = {"step": step, "seconds": seconds, "processes": self.world.size}
        for write in (
            lambda: self.write_shards(name, state) if sharded else self.write_file(name, state),
            lambda: self.describe(name, about),
        ):
            problem = self.attempt(write)
            if self.world.anyone(problem is not None):  # all give up together, so that nobody waits for another
                self.complaints.append(f"the checkpoint of step {step} could not be written ({problem or 'elsewhere'})")
                return None
        self.attempt(lambda: self.forget_old(name))
        return self.folder / f"{name}.json"

    def attempt(self, write: Callable[[], None]) -> str | None:
        """What went wrong, in a few words."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write()
        except (OSError, CheckpointException) as error:
            return getattr(error, "strerror", None) or str(error).split("\n")[0]
        return None

    def describe(self, name: str, about: dict[str, Any]) -> None:
        """The small JSON that makes a checkpoint count."""
        if self.world.is_main:
            sharded = self.folder / name
            content = sorted(sharded.iterdir()) if sharded.is_dir() else [self.folder / f"{name}.safetensors"]
            files = [fingerprint(path, self.folder) for path in content]
            write_atomically(self.folder / f"{name}.json", json.dumps(about | {"files": files}, indent=1).encode())

    def write_file(self, name: str, state: State) -> None:
        if self.world.is_main:
            tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
            write_atomically(self.folder / f"{name}.safetensors", to_bytes(tensors))

    def write_shards(self, name: str, state: State) -> None:
        path = self.folder / name
        if self.world.is_main and path.exists():
            shutil.rmtree(path)
        self.world.wait()
        save_shards(dict(state), checkpoint_id=str(path))

    def forget_old(self, newest: str) -> None:
        """Keep the last up to the newest; take away older ones, later ones of a run before, and what is unfinished."""
        if not self.world.is_main:
            return
        known = sorted(path.stem for path in self.folder.glob("step-*.json") if path.stem <= newest)
        kept = set(known[-self.keep :])
        for path in self.folder.iterdir():
            if path.name.lstrip(".").split(".")[0] not in kept and path.name.lstrip(".").startswith("step-"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def newest(self) -> Path | None:
        """The description of the newest checkpoint that is whole; complaints say what was passed over."""
        for path in sorted(self.folder.glob("step-*.json"), reverse=True):
            if problem := self.problem(path):
                self.complaints.append(f"{path.stem} is passed over: {problem}")
            else:
                return path
        return None

    def problem(self, path: Path) -> str | None:
        try:
            for file in read_description(path)["files"]:
                if fingerprint(self.folder / file["name"], self.folder) != file:
                    return f"{file['name']} is damaged"
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            return f"it cannot be read ({error})"
        return None

    def load(self, path: Path, wanted: Mapping[str, Tensor]) -> tuple[int, float]:
        """Fill the wanted tensors in place, however many processes wrote them; returns step and seconds so far."""
        about = read_description(path)
        sharded = path.with_suffix("")
        if sharded.is_dir():
            with warnings.catch_warnings():  # one process may read what many wrote
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load_shards(dict(wanted), checkpoint_id=str(sharded), no_dist=self.world.size == 1)
        else:
            fill(wanted, load_file(path.with_suffix(".safetensors")))
        return about["step"], about["seconds"]

    def contents(self, path: Path) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a checkpoint holds."""
        sharded = path.with_suffix("")
        if sharded.is_dir():
            entries: dict[str, Any] = FileSystemReader(str(sharded)).read_metadata().state_dict_metadata
            return {name: tuple(entry.size) for name, entry in entries.items()}
        return {name: tuple(value.shape) for name, value in load_file(path.with_suffix(".safetensors")).items()}


@torch.no_grad()
def fill(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, target in wanted.items():
        value = found[name]
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value)


def read_description(path: Path) -> dict[str, Any]:
    """A checkpoint's JSON, which must speak of this checkpoint and in the right types."""
    with open_file(path) as file:
        about = json.loads(file.read())
    step, seconds, files = about["step"], about["seconds"], about["files"]
    if type(step) is not int or path.stem != f"step-{step:08}" or not files or not isinstance(files, list):
        raise ValueError(f"it is no description of {path.stem}")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"its seconds are {seconds!r}")
    return {"step": step, "seconds": float(seconds), "files": files}


def fingerprint(path: Path, below: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"name": str(path.relative_to(below)), "bytes": size, "blake2b": file_digest(path, "blake2b")}


def state_of(model: torch.nn.Module, average: Mapping[str, Tensor], optimizers: list[torch.optim.Optimizer]) -> State:
    """Everything that a step changes, under flat names: weights, their average, what the optimizers remember."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state |= {f"average.{name}": value for name, value in average.items()}
    for optimizer in optimizers:
        for parameter, values in optimizer.state.items():
            state |= {f"optimizer.{names[id(parameter)]}.{field}": value for field, value in values.items()}
    return state


def remember(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], contents: Mapping[str, tuple[int, ...]]
) -> None:
    """Room for what the optimizers will be told to remember: they make it themselves only at their first step."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                start = f"optimizer.{names[id(parameter)]}."
                for name, shape in contents.items():
                    if name.startswith(start) and "." not in (field := name.removeprefix(start)):
                        same = shape == tuple(parameter.shape)
                        optimizer.state[parameter][field] = torch.zeros_like(parameter) if same else torch.zeros(shape)
