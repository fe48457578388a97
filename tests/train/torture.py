"""Kill tiny runs, fill their disk or simulate power loss at random times; after a resume the result must be identical.

    python -m tests.train.torture --kills 200 --full-disks 50 --power-losses 50 [--seed 0]

It prints JSON with the number of tries, the number of results bit-identical to an uninterrupted run, and failures with
their reasons. Every try forks a few processes, which takes one or two seconds on an idle machine.

- A *kill* is SIGKILL at a random time, up to three in a row.
- A *full disk* is a tmpfs of random size, smaller than the run; the process must exit with code 0, or 2 and a message,
  and is resumed after the file system has been enlarged. Skipped without the permission to mount.
- A *power loss* is simulated: after SIGKILL every file is truncated to a random length, or zero-filled from there, but
  never below its last ``fsync``, and up to three of the last renames are undone, since their folder was not synced.
  Renames are lost in reverse order, as on file systems with an ordered journal, and deletions are not undone. Drives
  that ignore cache flushes and file systems without ordering are not simulated.

Compared are weights, moving average and optimizer state of the last checkpoint, the saved model, and the logged losses.
After a full disk the saved model may differ: an evaluation whose model could not be saved does not count as the best.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from tests.train.runs import RECIPE, tensors
from vitreous.runs.run import train

STEPS = 12
TINY = replace(
    RECIPE,
    model=RECIPE.model.override(dim=16, depth=1, image_size=16),
    data=replace(RECIPE.data, limit=16),
    train=replace(RECIPE.train, steps=STEPS, batch_size=8, checkpoint_every=1, evaluate_every=2),
)
TIMEOUT = 120  # seconds per process
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # memory file system, for speed
OUTPUT = Path(tempfile.gettempdir()) / f"torture-{os.getpid()}.txt"  # of the last process


@dataclass
class Tally:
    """Results of one kind of failure."""

    tries: int = 0
    exact: int = 0
    interrupted: int = 0  # tries in which the failure hit a running process
    failures: list[str] = field(default_factory=list)

    def count(self, number: int, attempt: Callable[[random.Random], bool], seed: int) -> Tally:
        for index in range(number):
            self.tries += 1
            try:
                self.interrupted += attempt(random.Random(f"{seed}/{index}"))
                self.exact += 1
            except Failure as failure:
                self.failures.append(f"try {index}: {failure}")
        return self


class Failure(Exception):
    """A run that ended in a wrong state."""


def started(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Fork a process that starts or resumes the run, with its output redirected to a file; return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        prepare()
        train(TINY, folder, resume=True)
        code = 0
    except ValueError as error:
        print(error, file=sys.stderr, flush=True)
        code = 2
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def ended(child: int, seconds: float) -> int | None:
    """Return the exit code (negative for a signal), or None if the process still runs after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def to_the_end(folder: Path, allowed: tuple[int, ...] = (0,)) -> int:
    child = started(folder)
    code = ended(child, TIMEOUT)
    if code is None:
        kill(child)
        raise Failure(f"it hung for {TIMEOUT} seconds")
    if code not in allowed:
        raise Failure(f"exit code {code}: {OUTPUT.read_text()[-600:]}")
    return code


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]


def differs(folder: Path, reference: Path, *, kept: bool = True) -> str:
    """Return the first difference from the uninterrupted run, or an empty string."""
    names = [f"checkpoints/step-{STEPS:08}.safetensors", *(["model.safetensors"] if kept else [])]
    for name in names:
        ours, theirs = tensors(folder / name), tensors(reference / name)
        for key in sorted(ours.keys() | theirs.keys()):
            same = key in ours and key in theirs and np.array_equal(ours[key], theirs[key], equal_nan=True)
            if not same and (kept or key != "best"):
                return f"{key} in {name} differs"
    for name in ("result.json", "report.html", "data.json", "config.json"):
        if not (folder / name).exists():
            return f"{name} is missing"
    if left := [path.name for path in (folder / "checkpoints").glob(".*")]:
        return f"temporary files remain: {left}"
    return "" if losses(folder) == losses(reference) else "the log differs"


def check(folder: Path, reference: Path, *, kept: bool = True) -> None:
    if problem := differs(folder, reference, kept=kept):
        raise Failure(problem)


@dataclass(frozen=True)
class Torture:
    reference: Path
    seconds: float  # duration of an uninterrupted run

    def killed(self, rng: random.Random) -> bool:
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            folder, hit = Path(name) / "run", False
            for _ in range(rng.choice((1, 1, 2, 3))):
                child = started(folder)
                if ended(child, rng.uniform(0, self.seconds)) is None:
                    kill(child)
                    hit = True
            to_the_end(folder)
            check(folder, self.reference)
            return hit

    def disk_full(self, rng: random.Random) -> bool:
        needed = sum(path.stat().st_blocks * 512 for path in self.reference.rglob("*"))
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            place = Path(name) / "disk"
            place.mkdir()
            mount(place, "size", int(needed * rng.uniform(0.05, 1.0)))
            try:
                hit = to_the_end(place / "run", allowed=(0, 2)) == 2
                mount(place, "remount,size", 64 * 2**20)
                to_the_end(place / "run")
                check(place / "run", self.reference, kept=False)
                return hit
            finally:
                subprocess.run(["umount", place], check=False)

    def power_lost(self, rng: random.Random) -> bool:
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            folder, witness = Path(name) / "run", Witness(Path(name) / "witness")
            child = started(folder, witness.watch)
            hit = ended(child, rng.uniform(0, self.seconds)) is None
            if hit:
                kill(child)
                witness.lose(folder, rng)
            to_the_end(folder)
            check(folder, self.reference)
            return hit


def mount(place: Path, option: str, size: int) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{option}={size}", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PermissionError(done.stderr.strip())


@dataclass(frozen=True)
class Witness:
    """Records all fsyncs and renames of a process, and keeps replaced files."""

    folder: Path

    def watch(self) -> None:
        """Patch ``os.fsync`` and ``os.replace``; called in the process before training."""
        self.folder.mkdir()
        journal = os.open(self.folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        fsync, replace_file = os.fsync, os.replace

        def note(**event: object) -> None:
            os.write(journal, (json.dumps(event) + "\n").encode())

        def watched_fsync(number: int) -> None:
            fsync(number)
            found = os.fstat(number)
            note(synced=found.st_ino, size=found.st_size)

        def watched_replace(source: Path, target: Path) -> None:
            old = self.folder / f"old-{time.monotonic_ns()}"
            if os.path.exists(target):
                os.link(target, old)
            replace_file(source, target)
            note(source=str(source), target=str(target), old=str(old), inode=os.stat(target).st_ino)

        os.fsync, os.replace = watched_fsync, watched_replace  # type: ignore[assignment]

    def lose(self, folder: Path, rng: random.Random) -> None:
        """Put the folder into a state that a power loss could have left."""
        path = self.folder / "journal"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        renames = [event for event in events if "target" in event]
        for event in renames[::-1][: rng.randrange(4)]:
            target = Path(event["target"])
            if target.exists() and target.stat().st_ino == event["inode"]:
                os.rename(target, event["source"])
                if Path(event["old"]).exists():
                    os.rename(event["old"], target)
        synced = {event["synced"]: event["size"] for event in events if "synced" in event}
        for file in (path for path in folder.rglob("*") if path.is_file()):
            safe, size = synced.get(file.stat().st_ino, 0), file.stat().st_size
            if safe < size:
                length = rng.randint(safe, size)
                os.truncate(file, length)
                if rng.random() < 0.3:
                    os.truncate(file, size)  # zero-filled


def torture(kills: int, full_disks: int, power_losses: int, seed: int = 0) -> dict[str, object]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        reference = Path(name) / "run"
        to_the_end(reference)  # warm-up: imports and caches are not timed
        shutil.rmtree(reference)
        begin = time.monotonic()
        to_the_end(reference)
        own = Torture(reference, time.monotonic() - begin)
        result: dict[str, object] = {"seconds_of_a_run": round(own.seconds, 2), "steps": STEPS}
        for kind, number, attempt in (
            ("kills", kills, own.killed),
            ("full_disks", full_disks, own.disk_full),
            ("power_losses", power_losses, own.power_lost),
        ):
            try:
                result[kind] = vars(Tally().count(number, attempt, seed))
            except PermissionError as error:
                result[kind] = {"left_out": f"no permission to mount a file system ({error})"}
        OUTPUT.unlink(missing_ok=True)
        return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.train.torture", description=__doc__.splitlines()[0])
    for name in ("--kills", "--full-disks", "--power-losses", "--seed"):
        parser.add_argument(name, type=int, default=0)
    options = parser.parse_args()
    result = torture(options.kills, options.full_disks, options.power_losses, options.seed)
    print(json.dumps(result, indent=1))
    return int(any(isinstance(part, dict) and part.get("failures") for part in result.values()))


if __name__ == "__main__":
    sys.exit(main())
