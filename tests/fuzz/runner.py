"""Give cases to a child, watch it, start another one when it hangs or dies, and sum up."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HANG = 60  # seconds
LEFT = 400  # characters of a failure's words
ROOT = Path(__file__).resolve().parents[2]

Case = tuple[str, int, int]  # kind, seed, index


class Child:
    """A process that runs cases; it is replaced when one ends or hangs it."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.fuzz.child", str(self.folder)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.answer(process, 4 * HANG) is not None, "the process for the cases does not start"
        return process

    def answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any] | None:
        """A line of the child; None when it has not come in time, an empty one when the child has ended."""
        assert process.stdout is not None
        end, content = time.monotonic() + seconds, b""
        while not content.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            if not (part := os.read(process.stdout.fileno(), 1 << 16)):
                return {"problems": [f"process ended ({process.wait()})"]}
            content += part
        return json.loads(content)

    def run(self, case: Case) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(case) + "\n").encode())
        found = self.answer(self.process, HANG)
        if found is None or "words" not in found:
            self.end()
            shutil.rmtree(self.folder / "case", ignore_errors=True)
            self.process = self.start()
        return found or {"problems": ["hang"]}

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(cases: Iterable[Case], *, seconds: float = float("inf")) -> dict[str, Any]:
    """Run cases for so long at most; how many there were of each end, and every failure with how to see it again."""
    start, ends, kinds, failures = time.monotonic(), Counter[str](), Counter[str](), []
    peak, slowest = 0, (0.0, "")
    with Child() as child:
        for case in cases:
            if time.monotonic() - start > seconds:
                break
            found = child.run(case)
            kind, seed, index = case
            name = f"--seed {seed} --only {kind}:{index}"
            ends["accepted" if found.get("code") == 0 else "refused"] += not found["problems"]
            ends.update(found["problems"])
            kinds[kind] += 1
            peak = max(peak, found.get("memory", 0))
            slowest = max(slowest, (found.get("seconds", 0.0), name))
            if found["problems"]:
                failures.append({"again": name, "words": " ".join(found.get("words", []))[:LEFT]} | {
                    part: found.get(part) for part in ("problems", "code", "err")})  # fmt: skip
    counted = {name: ends[name] for name in ("refused", "accepted", "traceback", "exit code 1", "hang")}
    return {
        "inputs": kinds.total(), **counted, "other": {name: n for name, n in ends.items() if name not in counted},
        "failed": len(failures), "kinds": dict(kinds), "peak_megabytes": peak >> 20, "slowest": slowest,
        "seconds": round(time.monotonic() - start), "failures": failures,
    }  # fmt: skip
