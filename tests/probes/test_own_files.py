"""Files of ours in a process that closes them and opens its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distprof_probes.own_files import OwnFile, high_numbers, out_of_the_way

HIGH = 700


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OwnFile]:
    file = OwnFile(tmp_path / "ours", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield file
    file.close()


def test_a_file_leaves_the_low_numbers_to_the_program(tmp_path: Path) -> None:
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    ours = OwnFile(tmp_path / "ours", os.O_WRONLY | os.O_CREAT)
    theirs = os.open(os.devnull, os.O_RDONLY)
    os.close(theirs)
    ours.close()
    assert theirs == free
    assert ours.number >= HIGH


def test_a_file_that_was_closed_is_opened_again_and_goes_on(
    opened: OwnFile, tmp_path: Path
) -> None:
    os.write(opened.number, b"one ")
    os.close(opened.number)
    assert not opened.is_open()
    assert opened.is_usable()
    os.write(opened.number, b"two")
    assert (tmp_path / "ours").read_bytes() == b"one two"


def test_a_number_that_belongs_to_another_file_is_neither_used_nor_closed(
    opened: OwnFile, tmp_path: Path
) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    number = opened.number
    os.dup2(other, number)
    assert not opened.is_open()
    opened.close()
    assert os.fstat(number).st_ino == os.fstat(other).st_ino  # still open
    assert opened.is_usable()
    assert opened.number != number
    os.close(number)
    os.close(other)


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_another_file_of_the_same_name_is_not_taken(
    what: str, opened: OwnFile, tmp_path: Path
) -> None:
    os.close(opened.number)
    (tmp_path / "ours").unlink()
    if what == "replaced":
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "between").write_bytes(b"")  # so that it gets another inode
        (tmp_path / "between").rename(tmp_path / "ours")
    assert not opened.is_usable()


def test_where_no_high_number_is_allowed_the_file_stays_where_it_is() -> None:
    code = """
import os, resource
from distprof_probes.own_files import high_numbers, out_of_the_way
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
number = os.open(os.devnull, os.O_RDONLY)
assert out_of_the_way(number) == number
os.fstat(number)
with high_numbers():
    assert os.open(os.devnull, os.O_RDONLY) < 64
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_library_opens_its_files_with_high_numbers() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with high_numbers():
        made = os.open(os.devnull, os.O_RDONLY)
    os.close(made)
    assert made >= HIGH
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_what_is_out_of_the_way_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    number = out_of_the_way(os.open(tmp_path / "file", os.O_RDONLY))
    assert os.read(number, 100) == b"content"
    assert not os.get_inheritable(number)
    os.close(number)
