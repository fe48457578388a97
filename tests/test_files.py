"""Files are whole or not there, whatever happens while they are written."""

import hashlib
import os
import stat
import subprocess
import sys
import threading

import pytest

from vitreous import files
from vitreous.files import (
    CannotRead,
    CannotWrite,
    atomic_replacement,
    commit,
    digest,
    file_digest,
    files_below,
    open_file,
    write_atomically,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path):
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "a.json", content)
        assert (tmp_path / "a.json").read_bytes() == content
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failure_midway_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def write_half():
        with atomic_replacement(path) as temporary:
            temporary.write_bytes(b"half of the ne")
            raise error

    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        write_half()
    assert names(tmp_path) == ["a.json"]
    assert path.read_bytes() == b"old"


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda number: (order.append("fsync"), sync(number)))
    monkeypatch.setattr(files.os, "replace", lambda *paths: (order.append("replace"), replace(*paths)))
    write_atomically(tmp_path / "a", b"x")
    assert order == ["fsync", "replace"]


def test_the_temporary_file_lies_beside_its_target_and_is_hidden(tmp_path):
    with (
        atomic_replacement(tmp_path / "a.tar") as plain,
        atomic_replacement(tmp_path / "model.onnx", keep_suffix=True) as suffixed,
    ):
        assert plain.parent == suffixed.parent == tmp_path
        assert plain.name.startswith(".a.tar.")
        assert (plain.suffix, suffixed.suffix) == (".part", ".onnx")
    assert names(tmp_path) == ["a.tar", "model.onnx"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere/target")
    write_atomically(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere/target").read_bytes() == b"x"


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_threads_do_not_write_into_each_others_files(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    threads = [threading.Thread(target=write_atomically, args=(tmp_path / "a", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_bytes() in contents
    assert names(tmp_path) == ["a"]


def test_what_cannot_be_written_is_said_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^cannot write .*: it is a folder$"):
        write_atomically(tmp_path, b"")
    with pytest.raises(ValueError, match=r"^cannot write .*missing/a: there is no folder .*missing$"):
        write_atomically(tmp_path / "missing/a", b"")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"^cannot write .*pipe: it is a pipe, a device or a socket"):
        write_atomically(tmp_path / "pipe", b"")
    assert names(tmp_path) == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(OSError, match=r"^cannot write .*a: Permission denied; choose another folder$") as caught:
        write_atomically(tmp_path / "a", b"")
    assert isinstance(caught.value, CannotWrite)
    assert caught.value.errno == 13


def test_digests(tmp_path):
    (tmp_path / "a").write_bytes(b"vitreous")
    assert digest(b"vitreous") == digest("vitreous") == file_digest(tmp_path / "a")
    assert digest(b"vitreous") == hashlib.sha256(b"vitreous").hexdigest()
    assert file_digest(tmp_path / "a", "blake2b") == hashlib.blake2b(b"vitreous").hexdigest()


def test_the_commit_is_empty_where_there_is_no_git(monkeypatch):
    def missing(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(files.subprocess, "run", missing)
    assert commit() == ""


def test_needs_the_standard_library_alone():
    code = "import sys, vitreous.files; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


def test_a_regular_file_is_opened(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with open_file(tmp_path / "a") as file:
        assert file.read() == b"content"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in {
        "pipe": "pipe, a device or a socket",
        "zero": "pipe, a device or a socket",
        "lost": "No such file",
        "loop": "symbolic links",
        ".": "it is a folder",
        "a\0b": "null",
    }.items():
        with pytest.raises(CannotRead, match=reason):
            open_file(tmp_path / name)


def test_without_permission_the_error_is_a_sentence(tmp_path, monkeypatch):
    def denied(path, *_):
        raise PermissionError(13, "Permission denied", os.fspath(path))

    (tmp_path / "closed").mkdir()
    for call in ("open", "scandir"):  # patched, since root may read everything
        monkeypatch.setattr(files.os, call, denied)
    for read in (open_file, lambda path: list(files_below(path))):
        with pytest.raises(CannotRead, match=r"^cannot read .*closed: Permission denied$"):
            read(tmp_path / "closed")
    assert issubclass(CannotRead, ValueError), "which the command line prints as it is"


def test_every_file_below_a_folder_is_found_once(tmp_path):
    for name in ("a", "b/c", "b/d/e", ".hidden/f", "b/.g"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "d" / "again").symlink_to(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "pipe")
    found = files_below(tmp_path, keep=lambda name: not name.startswith("."))
    assert sorted(os.path.relpath(path, tmp_path) for path in found) == ["a", "b/c", "b/d/e"]


def test_what_is_no_file_is_told_and_folders_above_are_not_entered(tmp_path):
    (tmp_path / "below" / "deep").mkdir(parents=True)
    (tmp_path / "above.txt").touch()
    (tmp_path / "below" / "a.txt").touch()
    (tmp_path / "below" / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "below" / "dead").symlink_to("nowhere")
    os.mkfifo(tmp_path / "below" / "pipe")
    others: list[str] = []
    assert [*files_below(tmp_path / "below", others=others)] == [str(tmp_path / "below" / "a.txt")]
    assert sorted(others) == [str(tmp_path / "below" / name) for name in ("dead", "pipe")]
