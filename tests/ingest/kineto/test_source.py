"""Bytes of long inputs, which a thread unpacks while the reader works."""

from __future__ import annotations

import gc
import gzip
import threading
import weakref

import pytest

from distprof import kernel as switch
from distprof.ingest import executor
from distprof.ingest.kineto import source as module
from distprof.ingest.kineto.source import ByteSource, watched

BLOCK = 1 << 14
TEXT = b"".join(b"%08d " % number for number in range(200_000))


@pytest.fixture(autouse=True)
def _with_threads(monkeypatch):
    monkeypatch.setattr(module, "threads_help", lambda: True)


@pytest.fixture(params=[1 << 40, 1 << 16], ids=["by the reader", "ahead"])
def _ahead(request, monkeypatch):
    """With a limit that this input does not reach, and with one that it does."""
    monkeypatch.setattr(module, "_LONG", request.param)


def read_all(source):
    """Every block, the next one begun before this one is taken, as framing does."""
    rooms = bytearray(BLOCK), bytearray(BLOCK)
    blocks = []
    count = source.read_into(memoryview(rooms[0]))
    while count:
        now, then = rooms[len(blocks) % 2], rooms[(len(blocks) + 1) % 2]
        if reads_ahead := source.is_long:
            source.begin_reading(memoryview(then))
        blocks.append(bytes(now[:count]))
        count = source.finish_reading() if reads_ahead else source.read_into(memoryview(then))
    return blocks


def threads_of_ours():
    return [t.name for t in threading.enumerate() if t.name.startswith("distprof-unpack")]


@pytest.mark.usefixtures("_ahead")
def test_everything_comes_in_full_blocks(tmp_path):
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(TEXT[:900_000], 1) + gzip.compress(TEXT[900_000:], 1))
    with ByteSource(path, "long") as source:
        blocks = read_all(source)
        assert source.read(BLOCK) == b""
    assert b"".join(blocks) == TEXT
    assert {len(block) for block in blocks[:-1]} == {BLOCK}
    assert source.damage is None
    assert threads_of_ours() == []


@pytest.mark.usefixtures("_ahead")
@pytest.mark.parametrize("damage", ["truncated", "garbled"])
def test_damage_far_inside_is_told_and_what_was_whole_is_kept(damage, tmp_path):
    packed = bytearray(gzip.compress(TEXT, 1))
    middle = len(packed) // 2
    if damage == "truncated":
        del packed[middle:]
    else:
        packed[middle : middle + 64] = b"\xff" * 64
    path = tmp_path / "long.json.gz"
    path.write_bytes(packed)
    with ByteSource(path, "long") as source:
        found = b"".join(read_all(source))
    assert len(found) > len(TEXT) // 3
    assert TEXT.startswith(found[: len(TEXT) // 3])
    assert source.damage is not None


def test_both_ways_give_the_same_blocks(tmp_path, monkeypatch):
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    found = []
    for limit in (1 << 40, 1 << 16):
        monkeypatch.setattr(module, "_LONG", limit)
        with ByteSource(path, "long") as source:
            found.append(read_all(source))
    assert found[0] == found[1]


def test_a_reader_that_stops_early_leaves_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LONG", 1 << 16)
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    with ByteSource(path, "long") as source:
        room = memoryview(bytearray(BLOCK))
        while not threads_of_ours():
            source.begin_reading(room)
            assert source.finish_reading() == BLOCK
        source.begin_reading(room)
    assert threads_of_ours() == []


@pytest.mark.usefixtures("_ahead")
@pytest.mark.parametrize("damaged", [False, True])
def test_what_was_begun_for_one_place_may_be_read_into_another(damaged, tmp_path):
    """At the end of the events, the rest of the file is wanted elsewhere."""
    packed = gzip.compress(TEXT, 1)
    path = tmp_path / "long.json.gz"
    path.write_bytes(packed[: len(packed) // 2] if damaged else packed)
    found = b""
    with ByteSource(path, "long") as source:
        room = memoryview(bytearray(BLOCK))
        for number in range(100_000):
            if number % 3 == 0 and source.is_long:
                source.begin_reading(room)
            if not (block := source.read(1_000)):
                break
            found += block
    assert found == TEXT[: len(found)]
    assert (len(found) == len(TEXT)) is not damaged


@pytest.mark.usefixtures("_ahead")
def test_watchers_hear_of_every_byte_in_the_thread_of_the_reader(tmp_path):
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    heard = []
    with (
        watched(lambda count: heard.append((threading.current_thread().name, count))),
        ByteSource(path, "long") as source,
    ):
        read_all(source)
    head = 1 << 15  # what a file is recognised by
    assert sum(count for _, count in heard) == path.stat().st_size - head
    assert {name for name, _ in heard} == {threading.current_thread().name}


def test_nothing_is_unpacked_ahead_where_threads_do_not_help(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LONG", 1 << 16)
    monkeypatch.setattr(module, "threads_help", lambda: False)
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    with ByteSource(path, "long") as source:
        for _ in read_all(source):
            assert threads_of_ours() == []


def test_a_closed_source_is_freed_at_once(tmp_path):
    """While traces are read, no garbage is collected."""
    path = tmp_path / "short.json.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    source = ByteSource(path, "short")
    gc.disable()
    try:
        with source:
            read_all(source)
        freed = weakref.ref(source)
        del source
        assert freed() is None
    finally:
        gc.enable()


def test_threads_help_only_where_a_cpu_is_free(monkeypatch):
    monkeypatch.setattr(switch, "_has_spare_cpus", True)
    monkeypatch.setattr(switch, "_compiled", module)
    assert switch.threads_help()
    switch.share_cpus()
    assert not switch.threads_help()
    monkeypatch.setattr(switch, "_has_spare_cpus", True)
    monkeypatch.setenv(switch.KERNEL_ENVIRONMENT, "off")
    assert not switch.threads_help()


@pytest.mark.parametrize(("workers", "expected"), [(64, False), (1, True)])
def test_workers_use_threads_if_there_are_fewer_than_cpus(workers, expected, monkeypatch):
    monkeypatch.setattr(executor, "available_processors", lambda: 8)
    monkeypatch.setattr(switch, "_compiled", module)
    with executor.ProcessExecutor(workers) as pool:
        assert pool.submit(switch.threads_help).result() is expected
