import contextlib
import errno
import io
import json
import struct
import threading
from pathlib import Path

import pytest

from distprof.ingest import tables_file
from distprof.ingest.kineto.reader import read_trace
from distprof.ingest.tables_file import (
    DamagedTablesError,
    HostRowsWriter,
    Part,
    TablesReader,
    TablesWriter,
)
from distprof.run.tables import HOST
from distprof.schema import Table
from tests.ingest.kineto.traces import rows_of
from tests.ingest.stored import host_table

TRACE = (
    Path(__file__).parents[1] / "golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"
)  # fmt: skip
TABLES = [part for part in Part if part is not Part.RANK]


@contextlib.contextmanager
def written():
    """A writer, and after the block the reader of what was written."""
    file = io.BytesIO()
    writer = TablesWriter(file, "key")
    made = []
    yield writer, made
    writer.write_rank(b"{}")
    writer.finish()
    made.append(TablesReader(file, "file"))


def reader_of(data):
    return TablesReader(io.BytesIO(data), "file")


def test_tables_survive_a_round_trip():
    parsed = read_trace(TRACE)
    with written() as (writer, made):
        writer.write_table(Part.ACTIVITY, parsed.activity)
        writer.write_table(Part.HOST, parsed.host)
    (reader,) = made

    assert rows_of(reader.table(Part.ACTIVITY)) == rows_of(parsed.activity)
    assert rows_of(reader.table(Part.HOST)) == rows_of(parsed.host)
    assert reader.rank() == b"{}"
    assert reader.is_intact("key")
    assert not reader.is_intact("another key")


@pytest.mark.parametrize("part", TABLES)
def test_empty_tables_survive_a_round_trip(part):
    with written() as (writer, made):
        writer.write_table(part, Table.empty(part.schema))

    table = made[0].table(part)
    assert len(table) == 0
    assert table.schema is part.schema


def test_rows_written_piecewise_are_read_whole_and_shifted(monkeypatch):
    monkeypatch.setattr(tables_file, "ROW_GROUP", 4)
    with written() as (writer, made), writer.host_rows() as rows:
        for start in range(10):
            rows.write(host_table([f"n{start}", "same", f"n{start + 1}"], first_ns=start))
        rows.shift(10**18)
    table = made[0].table(Part.HOST)

    assert table.coded("name").decode()[:6] == ["n0", "same", "n1", "n1", "same", "n2"]
    assert len(table) == 30
    assert table["start_ns"][:4].tolist() == [10**18, 10**18 + 10, 10**18 + 20, 10**18 + 1]
    assert len(set(table.coded("name").values)) == len(table.coded("name").values) == 12


@pytest.mark.parametrize("num_writes", [1, 5])
def test_rows_that_cannot_be_written_are_an_error_of_the_writer(num_writes, monkeypatch):
    """Row groups are written by a thread, whose error must not be lost, at the next or the end."""

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tables_file, "ROW_GROUP", 2)
    monkeypatch.setattr(HostRowsWriter, "_write_group", write)

    def fill():
        with TablesWriter(io.BytesIO(), "key").host_rows() as rows:
            for _ in range(num_writes):
                rows.write(host_table(["a", "b", "c"]))

    with pytest.raises(OSError, match="No space") as error:
        fill()
    assert error.value.errno == errno.ENOSPC
    assert not [t for t in threading.enumerate() if t.name.startswith("distprof-write")]


class Full(io.BytesIO):
    """A disk with room for so many bytes."""

    room = 0

    def write(self, data):
        """Write, or fail as a full disk does."""
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("room", [0, 4, 500, 700])
def test_a_full_disk_is_the_error_of_the_operating_system(room):
    """Arrow writes through Python; its caller needs the error's number."""
    file = Full()
    file.room = room

    def fill():
        writer = TablesWriter(file, "key")
        with writer.host_rows() as rows:
            rows.write(host_table(["a", "b", "c"]))
        writer.write_table(Part.CALLS, host_table(["a", "b", "c"]))

    with pytest.raises(OSError, match="No space") as error:
        fill()
    assert error.value.errno == errno.ENOSPC


def test_a_sink_without_rows_gives_an_empty_table():
    with written() as (writer, made), writer.host_rows() as rows:
        pass

    assert len(rows.table()) == len(made[0].table(Part.HOST)) == 0


def test_a_second_sink_replaces_the_first():
    with written() as (writer, made):
        for names in (["first"], ["second"]):
            with writer.host_rows() as rows:
                rows.write(host_table(names))

    assert rows.table().coded("name").decode() == ["second"]
    assert made[0].table(Part.HOST).coded("name").decode() == ["second"]
    assert made[0].is_intact("key")


def test_a_trace_read_into_a_sink_equals_a_trace_read_whole():
    with written() as (writer, made), writer.host_rows() as rows:
        read_trace(TRACE, host_sink=rows)

    whole = rows_of(read_trace(TRACE).host)
    assert rows_of(rows.table()) == rows_of(made[0].table(Part.HOST)) == whole


def file_of(index, parts=b"", magic=b"distprof"):
    """A file with a right checksum and this index."""
    content = parts + (index if isinstance(index, bytes) else json.dumps(index).encode())
    length = len(content) - len(parts)
    return content + struct.pack("<II8s", length, tables_file.zlib.crc32(content), magic)


def part_index(start, size):
    return {"key": "key", "parts": {"calls": [start, size], "rank": [0, 0]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"no tables at all" * 10,
        file_of(part_index(0, 0), magic=b"another "),
        file_of(b"not json"),
        file_of({"key": "key"}),
        file_of({"key": "key", "parts": {"another": [0, 0]}}),
        file_of({"key": "key", "parts": {}, "more": 1}),
        file_of(b"[" * 60_000),
        file_of(b'{"more":' + b"[" * 60_000),
        file_of(part_index(0, 1)),
        file_of(part_index(-1, 1), b"x" * 8),
        file_of(part_index(2, -1), b"x" * 8),
        file_of(part_index(8, 1), b"x" * 8),
        file_of(part_index(2**70, 1), b"x" * 8),
        file_of(b" " * 70_000 + json.dumps(part_index(0, 0)).encode()),
    ],
)
def test_a_file_without_a_valid_index_is_damaged(data):
    with pytest.raises(DamagedTablesError, match="file: cannot read the cached tables"):
        reader_of(data)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" * 100])
def test_reading_a_damaged_table_says_so(content):
    reader = reader_of(file_of(part_index(0, len(content)), content))
    with pytest.raises(DamagedTablesError, match="cannot read the cached tables"):
        reader.table(Part.CALLS)
    with pytest.raises(DamagedTablesError):
        reader.table(Part.ACTIVITY)


def test_a_table_of_another_schema_is_refused():
    with written() as (writer, made):
        writer.write_table(Part.STEPS, Table.empty(Part.STEPS.schema))
    reader = made[0]
    parts = reader._index.parts
    parts[Part.HOST] = parts[Part.STEPS]

    with pytest.raises(DamagedTablesError):
        reader.table(Part.HOST)


def test_a_file_without_a_rank_is_not_intact():
    file = io.BytesIO()
    writer = TablesWriter(file, "key")
    writer.write_table(Part.HOST, Table.empty(HOST))
    writer.finish()

    assert not TablesReader(file, "file").is_intact("key")


def test_a_missing_file_is_damaged(tmp_path):
    with (
        pytest.raises(DamagedTablesError, match="none"),
        tables_file.open_tables(tmp_path / "none"),
    ):
        pass
