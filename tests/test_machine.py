"""What is kept in the cache folder, and for how long."""

import os
import time

import pytest

from vitreous import machine

OLD = time.time() - 100 * 86_400


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cache_folder", lambda: tmp_path)
    return tmp_path


def old_file(folder, name):
    (folder / name).write_text("{}")
    os.utime(folder / name, (OLD, OLD))
    return folder / name


def test_what_nobody_needed_for_long_is_removed_and_nothing_else(cache):
    for name in ("choice-1.json", "linear-avx2-1.so", "1.pt2", "somebody-elses.txt"):
        old_file(cache, name)
    (cache / "choice-2.json").write_text("{}")
    machine.prune_cache()
    assert sorted(path.name for path in cache.iterdir()) == ["choice-2.json", "somebody-elses.txt"]


def test_what_is_used_stays(cache):
    machine.mark_used(old_file(cache, "choice-1.json"))
    machine.mark_used(cache / "not-there.json")
    machine.prune_cache()
    assert [path.name for path in cache.iterdir()] == ["choice-1.json"]


def test_compilers_are_those_that_the_environment_names(monkeypatch, tmp_path):
    compiler = tmp_path / "my-compiler"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "my-compiler")
    monkeypatch.setenv("CXX", "my-compiler -m64")
    assert machine.c_compiler() == machine.cpp_compiler() == str(compiler)
    monkeypatch.setenv("CC", "another")
    monkeypatch.setenv("CXX", "another")
    assert machine.c_compiler() is machine.cpp_compiler() is None
