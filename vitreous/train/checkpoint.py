"""Atomic, verified checkpoints.

A checkpoint consists of its tensors (``step-00000500.safetensors``, or with sharded training a folder written by
``torch.distributed.checkpoint``) and a JSON manifest of the same name with sizes and digests, written last. A
checkpoint without a manifest is ignored; one with a wrong digest is skipped in favor of the previous one.
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
    """The checkpoints of a run: write the newest, keep the last ``keep``, restore the newest intact one."""

    def __init__(self, folder: Path, *, keep: int, world: World) -> None:
        self.folder, self.keep, self.world = folder, keep, world
        #: Messages about failed writes and skipped checkpoints.
        self.warnings: list[str] = []

    def save(self, step: int, state: State, *, seconds: float = 0.0) -> Path | None:
        """Write a checkpoint and return the path of its manifest; on failure add a warning and return None."""
        name = f"step-{step:08}"
        sharded = any(isinstance(value, DTensor) for value in state.values())
        about = {"step": step, "seconds": seconds, "processes": self.world.size}
        for write in (
            lambda: self.write_shards(name, state) if sharded else self.write_file(name, state),
            lambda: self.write_description(name, about),
        ):
            problem = self.try_write(write)
            if self.world.any_rank(
                problem is not None
            ):  # a rank that went on alone would deadlock at the next collective
                self.warnings.append(
                    f"the checkpoint of step {step} could not be written ({problem or 'on another process'})"
                )
                return None
        self.try_write(lambda: self.delete_old(name))
        return self.folder / f"{name}.json"

    def try_write(self, write: Callable[[], None]) -> str | None:
        """Run ``write``; return a short error message if it fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write()
        except (OSError, CheckpointException) as error:
            return getattr(error, "strerror", None) or str(error).split("\n")[0]
        return None

    def write_description(self, name: str, about: dict[str, Any]) -> None:
        """Write the manifest, which completes the checkpoint."""
        if self.world.is_main:
            sharded = self.folder / name
            content = sorted(sharded.iterdir()) if sharded.is_dir() else [self.folder / f"{name}.safetensors"]
            files = [file_entry(path, self.folder) for path in content]
            write_atomically(self.folder / f"{name}.json", json.dumps(about | {"files": files}, indent=1).encode())

    def write_file(self, name: str, state: State) -> None:
        if self.world.is_main:
            tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
            write_atomically(self.folder / f"{name}.safetensors", to_bytes(tensors))

    def write_shards(self, name: str, state: State) -> None:
        path = self.folder / name
        if self.world.is_main and path.exists():
            shutil.rmtree(path)
        self.world.barrier()
        save_shards(dict(state), checkpoint_id=str(path))

    def delete_old(self, newest: str) -> None:
        """Keep the last checkpoints up to ``newest``; delete all others and incomplete files."""
        if not self.world.is_main:
            return
        known = sorted(path.stem for path in self.folder.glob("step-*.json") if path.stem <= newest)
        kept = set(known[-self.keep :])
        for path in self.folder.iterdir():
            if path.name.lstrip(".").split(".")[0] not in kept and path.name.lstrip(".").startswith("step-"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def newest(self) -> Path | None:
        """Return the manifest of the newest intact checkpoint, adding a warning for each one skipped."""
        for path in sorted(self.folder.glob("step-*.json"), reverse=True):
            if problem := self.find_damage(path):
                self.warnings.append(f"skipped {path.stem}: {problem}")
            else:
                return path
        return None

    def find_damage(self, path: Path) -> str | None:
        """Compare files with the sizes and digests in the manifest; return what is wrong, or None."""
        try:
            for file in read_description(path)["files"]:
                if file_entry(self.folder / file["name"], self.folder) != file:
                    return f"{file['name']} is damaged"
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            return f"unreadable ({error})"
        return None

    def load(self, path: Path, wanted: Mapping[str, Tensor]) -> tuple[int, float]:
        """Load into ``wanted`` in place, whatever the number of writing processes; return step and training time."""
        about = read_description(path)
        sharded = path.with_suffix("")
        if sharded.is_dir():
            with warnings.catch_warnings():  # a single process may read the shards of several
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load_shards(dict(wanted), checkpoint_id=str(sharded), no_dist=self.world.size == 1)
        else:
            copy_into(wanted, load_file(path.with_suffix(".safetensors")))
        return about["step"], about["seconds"]

    def contents(self, path: Path) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor in a checkpoint, by name."""
        sharded = path.with_suffix("")
        if sharded.is_dir():
            entries: dict[str, Any] = FileSystemReader(str(sharded)).read_metadata().state_dict_metadata
            return {name: tuple(entry.size) for name, entry in entries.items()}
        return {name: tuple(value.shape) for name, value in load_file(path.with_suffix(".safetensors")).items()}


@torch.no_grad()
def copy_into(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Copy tensors by name in place, sharding them where the target is a DTensor."""
    for name, target in wanted.items():
        value = found[name]
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value)


def read_description(path: Path) -> dict[str, Any]:
    """Read and validate a checkpoint's manifest."""
    with open_file(path) as file:
        about = json.loads(file.read())
    step, seconds, files = about["step"], about["seconds"], about["files"]
    if type(step) is not int or path.stem != f"step-{step:08}" or not files or not isinstance(files, list):
        raise ValueError(f"not a manifest of {path.stem}")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"seconds must be a finite number, got {seconds!r}")
    return {"step": step, "seconds": float(seconds), "files": files}


def file_entry(path: Path, below: Path) -> dict[str, Any]:
    """Return the manifest entry of a file: relative name, size, digest."""
    size = path.stat().st_size
    return {"name": str(path.relative_to(below)), "bytes": size, "blake2b": file_digest(path, "blake2b")}


def training_state(
    model: torch.nn.Module, average: Mapping[str, Tensor], optimizers: list[torch.optim.Optimizer]
) -> State:
    """Return everything a training step changes, by flat names: weights, their moving average, optimizer state."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state |= {f"average.{name}": value for name, value in average.items()}
    for optimizer in optimizers:
        for parameter, values in optimizer.state.items():
            state |= {f"optimizer.{names[id(parameter)]}.{field}": value for field, value in values.items()}
    return state


def allocate_optimizer_state(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], contents: Mapping[str, tuple[int, ...]]
) -> None:
    """Allocate the optimizer state to be loaded into, which optimizers themselves create only at their first step."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                start = f"optimizer.{names[id(parameter)]}."
                for name, shape in contents.items():
                    if name.startswith(start) and "." not in (field := name.removeprefix(start)):
                        same = shape == tuple(parameter.shape)
                        optimizer.state[parameter][field] = torch.zeros_like(parameter) if same else torch.zeros(shape)
