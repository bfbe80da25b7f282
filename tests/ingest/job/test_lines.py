"""Line-wise files: each whole line counts, each broken one is counted, none stops the reading."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.records import MemoryRecord
from distprof.ingest.files import Folder
from distprof.ingest.job import rank_folder as lines
from distprof.ingest.job.rank_folder import read_lines

HEADER = b'{"schema":"distprof.memory/1","rank":0,"about":{"device":"A"}}\n'
LINE = b'{"step":%d,"t_ns":5}\n'


def read(folder, data, name="memory.jsonl"):
    (folder / name).write_bytes(data)
    found = []
    file = read_lines(Folder(str(folder)), name, "distprof.memory/1", MemoryRecord, found.append)
    return [record.step for record in found], file


def test_records_come_in_order_and_the_header_says_what_they_share(tmp_path):
    steps, file = read(tmp_path, HEADER + LINE % 0 + LINE % 1)
    assert steps == [0, 1]
    assert (file.about, file.num_records, file.notes()) == ({"device": "A"}, 2, ())


def test_a_file_that_does_not_exist_has_no_records(tmp_path):
    file = read_lines(
        Folder(str(tmp_path)), "x.jsonl", "distprof.memory/1", MemoryRecord, lambda _: None
    )
    assert (file.num_records, file.notes()) == (0, ())


def test_broken_lines_are_left_out_and_counted(tmp_path):
    steps, file = read(tmp_path, HEADER + LINE % 0 + b"{oops\n[]\n\n" + LINE % 1)
    assert steps == [0, 1]
    assert file.num_bad == 2
    assert file.notes() == ("Skipped 2 damaged lines in memory.jsonl.",)


def test_the_cut_last_line_of_a_killed_writer_costs_itself_only(tmp_path):
    steps, file = read(tmp_path, HEADER + LINE % 0 + b'{"step":1,"t_')
    assert (steps, file.num_bad, file.is_cut) == ([0], 0, True)
    assert "cut" in file.notes()[0]


def test_a_whole_last_line_without_its_end_counts(tmp_path):
    steps, file = read(tmp_path, HEADER + (LINE % 7).strip())
    assert (steps, file.is_cut) == ([7], False)


def test_a_lost_header_loses_no_record(tmp_path):
    steps, file = read(tmp_path, b"\x00\x00\n" + LINE % 3)
    assert (steps, file.num_bad) == ([3], 1)


@pytest.mark.parametrize(
    ("schema", "said"),
    [("distprof.memory/2", "upgrade distprof"), ("distprof.nvml/1", "its schema is")],
)
def test_a_file_of_another_kind_or_version_is_not_read_and_said_so(tmp_path, schema, said):
    steps, file = read(tmp_path, HEADER.replace(b"distprof.memory/1", schema.encode()) + LINE % 0)
    assert steps == []
    assert said in file.notes()[0]


def test_a_line_that_never_ends_is_dropped_without_being_kept(tmp_path):
    endless = b"x" * (lines.MAX_LINE_BYTES + 5)
    steps, file = read(tmp_path, HEADER + LINE % 0 + endless + b"\n" + LINE % 1)
    assert (steps, file.num_bad) == ([0, 1], 1)


def test_more_records_than_are_kept_are_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_RECORDS", 2)
    steps, file = read(tmp_path, HEADER + b"".join(LINE % i for i in range(5)))
    assert steps == [0, 1]
    assert "more than 2 records" in file.notes()[0]


def test_records_that_the_taker_refuses_are_bad_lines(tmp_path):
    def refuse(record):
        raise ValueError(record.step)

    (tmp_path / "m").write_bytes(HEADER + LINE % 0)
    file = read_lines(Folder(str(tmp_path)), "m", "distprof.memory/1", MemoryRecord, refuse)
    assert (file.num_records, file.num_bad) == (0, 1)


def test_a_pipe_is_never_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "memory.jsonl")
    file = read_lines(
        Folder(str(tmp_path)), "memory.jsonl", "distprof.memory/1", MemoryRecord, lambda _: None
    )
    assert file.num_records == 0


@given(st.binary(max_size=400))
def test_no_bytes_stop_the_reading(tmp_path_factory, noise):
    folder = tmp_path_factory.mktemp("lines")
    _, file = read(folder, HEADER + noise + b"\n" + LINE % 9 + noise)
    assert file.num_records >= 1
    assert all(isinstance(note, str) for note in file.notes())


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 50))
def test_where_blocks_end_makes_no_difference(tmp_path_factory, steps, block):
    folder = tmp_path_factory.mktemp("lines")
    data = HEADER + b"".join(msgspec.json.encode({"step": s, "t_ns": 1}) + b"\n" for s in steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK_BYTES", block)
        assert read(folder, data)[0] == steps
