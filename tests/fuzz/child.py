"""The process in which cases run, one after the other: a line of JSON asks for a case, another one tells the verdict.

It lives as long as nothing hangs or crashes, so that torch is imported once. Both outputs go into files meanwhile.
"""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

import torch

from tests.fuzz.kinds import make_case
from tests.fuzz.seeds import make_seeds
from vitreous.cli import main

ROOM = 2 << 30  # bytes above what the process holds before a case
WRITTEN = ("run", "out", "packed", "drawn")  # what a case may change of what was there before


def serve(folder: Path) -> None:
    """Answer until the pipe is closed."""
    asked, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    torch.set_num_threads(1)
    os.environ |= {"HOME": str(folder), "VITREOUS_CACHE": str(folder / "cache"), "TMPDIR": str(folder)}
    seeds = folder / "seeds"
    with captured(folder) as _:
        if not seeds.exists():
            seeds.mkdir()
            make_seeds(seeds)
    limit_memory()
    print("{}", file=answers, flush=True)
    for line in asked:
        kind, seed, index = json.loads(line)
        print(json.dumps(verdict(kind, seed, index, folder)), file=answers, flush=True)


def limit_memory() -> None:
    """Twice the room: a test of memory is no reason to bring the machine down."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2 * ROOM, resource.RLIM_INFINITY))


def verdict(kind: str, seed: int, index: int, folder: Path) -> dict[str, Any]:
    """Run one case in a folder of its own; what it did, and every promise that it broke."""
    here = folder / "case"
    here.mkdir()
    os.chdir(here)
    words = make_case(kind, seed, index, seeds=folder / "seeds", here=here)
    before, held = contents(here), memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = time.monotonic()
    with captured(folder) as said:
        code = exit_code(words)
    seconds, more = time.monotonic() - start, max(0, memory("VmHWM") - held)
    after = contents(here)
    problems = [*problems_of_answer(code, said["err"]), *(["memory"] if more > ROOM else [])]
    changed = [name for name in before if after.get(name) != before[name] and not name.startswith(WRITTEN)]
    problems += ["input changed"] * bool(set(changed).difference(words))  # what the words name may be an output
    problems += ["part left"] * any(is_left(name, code) for name in after.keys() - before.keys())
    os.chdir(folder)
    shutil.rmtree(here)
    told = said["err"][-600:] if problems else said["err"][-200:]
    return {"words": words, "code": code, "problems": problems, "err": told, "seconds": seconds, "memory": more}


def exit_code(words: list[str]) -> Any:
    try:
        return main(words)
    except SystemExit as stopped:  # of the parser
        return stopped.code or 0
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.300}"


def problems_of_answer(code: Any, err: str) -> list[str]:
    """An answer or a refusal: a refusal is one line that begins with the program's name, or a usage."""
    problems = ["traceback"] if "Traceback (most recent" in err or "Error ignored in" in err else []
    if code not in (0, 2):
        return [*problems, "exit code 1" if code == 1 else "exception"]
    lines = err.rstrip("\n").split("\n")
    one_line = lines[-1].startswith("vitreous") and ": " in lines[-1]
    if code == 2 and not (one_line or "usage:" in err or "─╯" in err or "--help" in err):
        problems.append("no single line")
    return problems + ["warning"] * any("Warning: " in line for line in lines)


def is_left(name: str, code: Any) -> bool:
    """Whether a file is the rest of something unfinished; journals of a refused run are there to go on with."""
    last = name.rsplit("/", 1)[-1]
    unfinished = last.startswith(".") and (".part" in last or ".trial" in last)
    return unfinished or (last.endswith(".part") and code == 0)


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with what it holds; nothing is followed, no pipe is opened."""
    found = {}
    for place, _, files in os.walk(os.fsencode(folder)):
        for path in (os.path.join(place, name) for name in files):
            mode = os.lstat(path).st_mode
            name = os.fsdecode(os.path.relpath(path, os.fsencode(folder)))
            regular = stat.S_ISREG(mode)
            found[name] = digest(path) if regular else str(stat.S_IFMT(mode))
    return found


def digest(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read()).hexdigest()


def memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


@contextlib.contextmanager
def captured(folder: Path):
    """What the process writes to both outputs meanwhile, also from below Python."""
    kept, said = [os.dup(number) for number in (1, 2)], {"out": "", "err": ""}
    files = {name: open(folder / name, "w+b", buffering=0) for name in said}  # noqa: SIM115
    os.dup2(files["out"].fileno(), 1)
    os.dup2(files["err"].fileno(), 2)
    try:
        yield said
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        for name, file in files.items():
            file.seek(0)
            said[name] = file.read().decode("utf-8", "replace")
            file.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Path(sys.argv[1]))
