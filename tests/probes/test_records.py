"""Lines off the training thread: nothing blocks, nothing raises, every loss is counted."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes import records
from distprof_probes.records import RecordWriter, drain, drain_when_this_thread_ends
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.files import write_atomically
from distprof.artefacts.records import Header


class Number(msgspec.Struct, frozen=True):
    value: int


class Late:
    """A record whose value comes only when told."""

    def __init__(self) -> None:
        self.value: int | None = None

    def resolve(self, *, is_last_chance: bool) -> Number | None:
        if self.value is not None:
            return Number(self.value)
        return Number(-1) if is_last_chance else None


def writer(path: Path, **keywords: object) -> RecordWriter:
    keywords.setdefault("background", False)
    return RecordWriter(path, Header(schema="test/1", rank=0), **keywords)  # type: ignore[arg-type]


def values(path: Path) -> list[int]:
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["schema"] == "test/1"
    return [json.loads(line)["value"] for line in lines[1:]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "numbers.jsonl"


def test_a_file_begins_with_its_header_even_without_records(file: Path) -> None:
    writer(file).close()

    assert values(file) == []


@given(st.lists(st.one_of(st.integers(0, 9), st.just("flush")), max_size=40), st.integers(1, 10))
def test_what_is_put_is_either_in_the_file_in_order_or_counted(
    tmp_path_factory: pytest.TempPathFactory, actions: list[int | str], limit: int
) -> None:
    file = tmp_path_factory.mktemp("records") / "numbers.jsonl"
    log = writer(file, limit=limit)
    put = 0
    for action in actions:
        if action == "flush":
            log.flush()
        else:
            log.put(Number(put))
            put += 1
    log.close()

    found = values(file)
    assert found == sorted(found)
    assert len(found) == log.num_records
    assert log.num_records + log.num_dropped == put
    if actions.count("flush") == 0:
        assert found == list(range(min(put, limit)))


def test_the_background_thread_writes_and_ends_with_the_last_file(file: Path) -> None:
    log = writer(file, background=True)
    log.put(Number(1))
    drain(10.0)

    assert values(file) == [1]
    log.close()
    ours = [t for t in threading.enumerate() if t.name == "distprof-writer" and t.is_alive()]
    for thread in ours:
        thread.join(10.0)
    assert not any(thread.is_alive() for thread in ours)


def test_what_a_thread_put_is_written_before_it_counts_as_ended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the training thread may kill the process then."""
    monkeypatch.setattr(records, "FLUSH_PERIOD_S", 60.0)

    def trains() -> None:
        drain_when_this_thread_ends()
        for number in range(3):
            log.put(Number(number))

    log = writer(file, background=True)
    thread = threading.Thread(target=trains)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert values(file) == [0, 1, 2]
    log.close()


def test_the_main_thread_writes_nothing_when_it_is_asked_to_at_its_end(file: Path) -> None:
    drain_when_this_thread_ends()
    assert not hasattr(records._of_thread, "at_end")


def test_a_writing_thread_that_died_is_replaced_for_the_next_file(tmp_path: Path) -> None:
    first = writer(tmp_path / "first.jsonl", background=True)
    first.flush = None  # type: ignore[method-assign,assignment]  # kills the thread at its next round
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _args: None)
        dying = [t for t in threading.enumerate() if t.name == "distprof-writer"]
        drain(0.0)
        for thread in dying:
            thread.join(10.0)
    del first.flush
    second = writer(tmp_path / "second.jsonl", background=True)
    first.put(Number(1))
    second.put(Number(2))
    drain(10.0)

    assert values(tmp_path / "first.jsonl") == [1]
    assert values(tmp_path / "second.jsonl") == [2]
    first.close()
    second.close()


def test_a_full_disk_drops_and_counts_and_never_raises() -> None:
    log = writer(Path("/dev/full"))
    for number in range(5):
        log.put(Number(number))
    log.close()

    assert (log.num_records, log.num_dropped) == (0, 5)
    assert log.problem == "full: No space left on device"


@given(room=st.integers(0, 200), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_a_disk_that_fills_up_leaves_whole_lines_and_takes_more_once_there_is_room(
    tmp_path_factory: pytest.TempPathFactory, room: int, sizes: list[int]
) -> None:
    file = tmp_path_factory.mktemp("records") / "numbers.jsonl"
    log = writer(file)
    left = room
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real_write(fd, data[:left])
        left -= done
        return done

    put = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write)
        for size in sizes:
            for _ in range(size):
                log.put(Number(put))
                put += 1
            log.flush()
    log.put(Number(1000))  # the disk has room again
    log.close()

    found = values(file)
    assert found[-1] == 1000
    assert found == sorted(found)
    assert len(found) == log.num_records
    assert log.num_records + log.num_dropped == put + 1


def test_a_file_deleted_while_it_is_written_is_noticed(file: Path) -> None:
    log = writer(file)
    log.put(Number(1))
    log.flush()
    file.unlink()
    log.put(Number(2))
    log.close()

    assert (log.num_records, log.num_dropped) == (1, 1)
    assert "deleted" in log.problem


def test_a_record_that_cannot_be_written_costs_itself_only(file: Path) -> None:
    class Odd(msgspec.Struct):
        value: object

    log = writer(file)
    log.put(Number(1))
    log.put(Odd(object()))
    log.put(Number(2))
    log.close()

    assert values(file) == [1, 2]
    assert log.num_dropped == 1
    assert "TypeError" in log.problem


def test_a_deferred_record_keeps_its_place_and_is_written_when_its_value_has_come(
    file: Path,
) -> None:
    log, late = writer(file), Late()
    log.put(Number(1))
    log.put(late)
    log.put(Number(3))
    log.flush()
    assert values(file) == [1]

    late.value = 2
    log.flush()
    assert values(file) == [1, 2, 3]
    log.close()


def test_a_deferred_record_is_written_without_its_value_at_the_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distprof_probes.records._PATIENCE_S", 0.0)
    log = writer(file)
    log.put(Late())
    log.close(timeout_s=30.0)

    assert values(file) == [-1]


def test_a_disk_that_never_answers_does_not_hold_up_the_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(file)
    log.put(Number(1))
    answers = threading.Event()
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        answers.wait(30.0)
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    log.close(timeout_s=0.01)
    problem = log.problem
    answers.set()

    assert "did not accept the rest" in problem


def test_put_after_close_is_counted(file: Path) -> None:
    log = writer(file)
    log.close()
    log.put(Number(1))

    assert log.num_dropped == 1


def test_a_forked_child_writes_nothing_into_its_parents_file(file: Path) -> None:
    log = writer(file)
    log.put(Number(1))
    log._pid += 1  # as a child sees it
    log.flush()
    log._pid -= 1
    log.put(Number(2))
    log.close()

    assert values(file) == [2]


def test_write_atomically_leaves_nothing_behind_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(data[:1])
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.json").write_bytes(b"before")
    monkeypatch.setattr(Path, "open", lambda self, mode: Full(self, mode))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.json", b"after")

    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"before"
