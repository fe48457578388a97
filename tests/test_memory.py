"""A batch's memory is kept for the next one."""

import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from contextlib import contextmanager, nullcontext
from vitreous.memory import retain_freed_memory

def faults(around):
    with around:
        for _ in range(8):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            step = [torch.ones(n * 1_000_000) for n in (10, 12, 10, 14)]
            step.clear()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

@contextmanager
def twice():
    with retain_freed_memory():
        try:
            with retain_freed_memory():
                raise ValueError("inside")
        except ValueError:
            yield

print(*(faults(around) for around in (nullcontext(), retain_freed_memory(), twice())))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_the_pages_of_a_step_are_there_for_the_next():
    """Tensors of 40 to 56 MB, made and freed again and again, in a process of its own."""
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    without, kept, kept_by_the_outer = map(int, result.stdout.split())
    pages = 4 * 46_000_000 // resource.getpagesize()
    assert without > 0.9 * pages
    assert max(kept, kept_by_the_outer) < 0.1 * pages
