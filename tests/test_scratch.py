"""Temporary folders: gone with their process, or with the next one."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from distprof.artefacts.files import scratch, scratch_folder
from tests.built_kernel import private_folder
from tests.processes import ended

MAKES_SCRATCH = """
import os, sys, time
from distprof.artefacts.files import keep_scratch, scratch_folder
made = scratch_folder("test")
print(made, flush=True)
if sys.argv[1] == "keep":
    keep_scratch(made)
    sys.exit()
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.skipif(os.name == "nt", reason="locks of folders")
def test_what_a_killed_process_left_is_deleted_by_the_next_and_what_is_in_use_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def start(how):
        command = [sys.executable, "-c", MAKES_SCRATCH, how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return process, Path(process.stdout.readline().strip())

    (over, own), (living, used), (dead, left) = start("0"), start("600"), start("kill")
    keeps, kept = start("keep")
    with ended(dead), ended(living), ended(over), ended(keeps):
        for process in (dead, over, keeps):
            process.wait(60)
        for folder in (left, used, kept):
            os.utime(folder, (time.time() - 100,) * 2)
        assert (left.exists(), used.exists(), own.exists()) == (True, True, False)
        mine = scratch_folder("test")
        assert (left.exists(), used.exists(), mine.exists()) == (False, True, True)
        assert kept.exists()


def test_a_block_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch("block") as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_many_blocks_hold_no_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with scratch("block"):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(os.name == "nt", reason="modes of folders")
def test_a_folder_of_a_known_name_is_private_or_refused(tmp_path):
    made = private_folder(tmp_path / "own")
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_folder(made) == made
    open_to_others = tmp_path / "open"
    open_to_others.mkdir()
    open_to_others.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(made)
    file = tmp_path / "file"
    file.touch(0o600)
    for path in (open_to_others, link, file):
        with pytest.raises(PermissionError, match="mode 0700"):
            private_folder(path)


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 65_534, 65_534)
    with pytest.raises(PermissionError, match="this user owns"):
        private_folder(foreign)
