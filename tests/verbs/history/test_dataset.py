"""The dataset of summaries: added summaries stay, whatever happens at the same time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.verbs.history import dataset
from distprof.verbs.history.dataset import (
    COLUMNS,
    append,
    compact,
    count_files,
    parquet_of,
    read,
    row_of,
)
from tests.verbs.history.samples import START_NS, summary

WRITERS, APPENDS = 8, 50
HANGS_S = 120
"""Seconds after which a test is given up; nothing is measured by them."""

_WRITE = f"""
import sys
from distprof.verbs.history.dataset import append
from tests.verbs.history.samples import summary
folder, writer = sys.argv[1], int(sys.argv[2])
for number in range({APPENDS}):
    append(folder, [summary(1_000 * writer + number + 1, day=writer, number=number)])
"""
_WRITE_FOR_EVER = """
import itertools, sys
from distprof.verbs.history.dataset import append
from tests.verbs.history.samples import summary
for number in itertools.count():
    append(sys.argv[1], [summary(number + 1, number=number)])
    print(number, flush=True)
"""


@pytest.fixture(params=["path", "file", "memory"])
def folder(request, tmp_path):
    """A place of each kind, with nothing there."""
    import fsspec

    if request.param == "memory":
        yield "memory://history/of/mine"
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    else:
        yield f"file://{tmp_path}/new/history" if request.param == "file" else str(tmp_path / "h")


def _start(warm, code, *arguments):
    return warm.popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )


def test_what_was_added_comes_back_oldest_first(folder):
    later, earlier = summary(3, day=2, label="b"), summary(5, day=1, peak_memory_bytes=7)
    assert append(folder, [later, earlier]) == 2
    assert read(folder) == ((earlier, later), ())


def test_a_run_is_there_once_however_often_it_is_added(folder):
    assert append(folder, [summary(1)]) == 1
    assert append(folder, [summary(1), summary(2)]) == 1
    assert len(read(folder)[0]) == 2


def test_files_have_the_columns_that_are_documented(tmp_path):
    append(str(tmp_path), [summary(7)])
    (file,) = tmp_path.iterdir()
    row = pq.ParquetFile(file).read().to_pylist()[0]
    assert list(row) == list(COLUMNS)
    assert (row["step_ns"], row["workload"], row["world_size"]) == (7, "ddp", 8)


def test_putting_files_together_loses_nothing(folder):
    runs = [summary(value, number=value) for value in range(1, 8)]
    append(folder, runs[:5])
    assert compact(folder) == (5, 5)
    assert count_files(folder) == 1
    assert append(folder, runs) == 2  # those that are in the merged file are known
    assert compact(folder) == (3, 7)
    assert compact(folder) == (0, 7)
    assert read(folder) == (tuple(runs), ())


def test_one_who_was_stopped_between_writing_and_removing_has_doubled_nothing(
    tmp_path, monkeypatch
):
    folder = str(tmp_path)
    append(folder, [summary(1), summary(2)])
    monkeypatch.setattr(dataset.Store, "remove", lambda *_: None)
    compact(folder)
    assert count_files(folder) == 3
    assert len(read(folder)[0]) == 2


def test_fields_of_a_later_version_survive(tmp_path):
    row = row_of(summary(1))
    text = row["summary"].replace('"label"', '"of_later":5,"label"')
    (tmp_path / f"{START_NS:020d}-{'0' * 24}.parquet").write_bytes(
        parquet_of([{**row, "summary": text}])
    )
    compact(str(tmp_path))
    assert len(read(str(tmp_path))[0]) == 1
    (file,) = tmp_path.iterdir()
    assert '"of_later":5' in pq.ParquetFile(file).read().to_pylist()[0]["summary"]


@pytest.mark.slow
def test_writers_at_the_same_time_lose_nothing_even_while_files_are_put_together(
    tmp_path, warm_python
):
    folder = str(tmp_path / "history")
    writers = [_start(warm_python, _WRITE, folder, number) for number in range(WRITERS)]
    counts = []
    while any(writer.poll() is None for writer in writers):
        if Path(folder).is_dir() and count_files(folder) > 60:
            compact(folder)
            counts.append(len(read(folder)[0]))
    assert [writer.communicate()[0] for writer in writers] == [""] * WRITERS
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    runs, notes = read(folder)
    assert len(runs) == WRITERS * APPENDS
    assert len({run.step_ns for run in runs}) == WRITERS * APPENDS
    assert notes == ()
    assert counts == sorted(counts)  # nothing that was there is ever missed


@pytest.mark.skipif(os.name == "nt", reason="kills by a signal")
def test_a_writer_that_is_killed_leaves_no_broken_file(tmp_path, warm_python):
    for _ in range(2):
        with _start(warm_python, _WRITE_FOR_EVER, tmp_path) as writer:
            written = int(writer.stdout.readline()) + 1
            writer.send_signal(signal.SIGKILL)
        runs, notes = read(str(tmp_path))
        assert len(runs) >= written
        assert notes == ()


def without_utf8():
    """A Parquet file whose summary is no text, although its type says so."""
    import pyarrow as pa

    offsets = pa.py_buffer(np.array([0, 4], np.int32))
    text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b'{"\xe5"'))
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"summary": text}), out)
    return out.getvalue().to_pybytes()


def with_a_name_without_utf8():
    """A file with a column name that is not UTF-8."""
    return parquet_of([row_of(summary(2))]).replace(b"summary", b"s\xe5mmary")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"PAR1", b"no parquet at all", without_utf8(), with_a_name_without_utf8()),
        *("cut", "columns", "types"),
    ],
)
def test_a_damaged_file_is_named_and_left_out(tmp_path, data):
    append(str(tmp_path), [summary(1)])
    name = f"{START_NS:020d}-{'f' * 24}.parquet"
    if data == "cut":
        data = parquet_of([row_of(summary(2))])[:-9]
    elif data == "columns":
        import pyarrow as pa

        pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    elif data == "types":
        import pyarrow as pa

        pq.write_table(pa.table({"summary": [5]}), tmp_path / name)
    if isinstance(data, bytes):
        (tmp_path / name).write_bytes(data)
    runs, notes = read(str(tmp_path))
    assert [run.step_ns for run in runs] == [(1,)]
    assert len(notes) == 1
    assert name in notes[0]
    compact(str(tmp_path))
    assert (tmp_path / name).exists()  # for whoever can mend it


def test_merged_files_that_are_damaged_do_not_stop_a_run_from_being_added(tmp_path):
    for number, data in enumerate((without_utf8(), with_a_name_without_utf8())):
        (tmp_path / f"merged-{number:024d}.parquet").write_bytes(data)
    assert append(str(tmp_path), [summary(1)]) == 1
    runs, notes = read(str(tmp_path))
    assert (len(runs), len(notes)) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"schema": "distprof.summary/1"}',
        '{"schema": "distprof.summary/9", "distprof_version": "1", "created_ns": 3}',
        '{"distprof_version": "1", "created_ns": "soon"}',
        "[" * 100_000,
    ],
)
def test_a_row_that_is_no_summary_is_named_and_left_out(tmp_path, text):
    append(str(tmp_path), [summary(1)])
    name = f"{START_NS:020d}-{'f' * 24}.parquet"
    (tmp_path / name).write_bytes(parquet_of([{**row_of(summary(2)), "summary": text}]))
    runs, notes = read(str(tmp_path))
    assert len(runs) == 1
    assert name in notes[0]


def test_files_that_are_not_the_historys_are_left_alone(tmp_path):
    (tmp_path / "README.md").write_text("what this is")
    append(str(tmp_path), [summary(1)])
    (tmp_path / "other.parquet").write_bytes(b"mine")
    runs, notes = read(str(tmp_path))
    assert len(runs) == 1
    assert notes == ("other.parquet and other files that are not part of a history are left out.",)
    compact(str(tmp_path))
    assert (tmp_path / "other.parquet").read_bytes() == b"mine"


def test_a_folder_of_another_kind_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"other files, for example run\.json"):
        append(str(tmp_path), [summary(1)])
    with pytest.raises(InputError, match=r"other files, for example run\.json"):
        read(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_where_nothing_is_the_way_out_is_told(folder):
    for ask in (read, compact):
        with pytest.raises(InputError, match="distprof history add"):
            ask(folder)


@pytest.mark.parametrize("place", ["nothing://there", "file", "file/below", "\0"])
def test_a_place_that_cannot_be_one_is_refused(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with pytest.raises(InputError, match="--history"):
        append(place, [summary(1)])


@pytest.mark.parametrize(
    "fields",
    [
        {"label": "\ud800\x1b[31m\n", "source": "\udcff"},
        {"commit": "'; DROP TABLE history; --"},
        {"peak_memory_bytes": 2**63 + 5},
        {"tokens_per_step": float("inf"), "overlap_ratio": float("nan")},
    ],
)
def test_absurd_values_are_kept_or_left_empty(tmp_path, fields):
    assert append(str(tmp_path), [summary(1, **fields)]) == 1
    runs, notes = read(str(tmp_path))
    assert len(runs) == 1
    assert notes == ()
    (file,) = tmp_path.iterdir()
    assert pq.ParquetFile(file).metadata.num_rows == 1


def test_a_run_without_steps_has_no_step():
    row = row_of(msgspec.structs.replace(summary(1), step_ns=()))
    assert (row["step_ns"], row["num_steps"]) == (None, 0)


def test_a_file_that_is_merged_while_it_is_read_is_not_missed(tmp_path, monkeypatch):
    folder = str(tmp_path)
    append(folder, [summary(1), summary(2)])
    get, is_merged = dataset.Store.get, []

    def get_late(store, name):
        if not is_merged:
            is_merged.append(True)
            compact(folder)
        return get(store, name)

    monkeypatch.setattr(dataset.Store, "get", get_late)
    runs, notes = read(folder)
    assert (len(runs), notes) == (2, ())


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=4, max_size=4),
    steps=st.lists(st.integers(0, 2**63 - 1), max_size=3),
    share=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    created=st.integers(-(2**62), 2**62),
)
def test_any_summary_comes_back_as_it_was(tmp_path_factory, texts, steps, share, created):
    folder = str(tmp_path_factory.mktemp("history"))
    commit, label, source, name = texts
    one = msgspec.structs.replace(
        summary(1, commit=commit, label=label, source=source, overlap_ratio=share),
        step_ns=tuple(steps),
        created_ns=created,
        fingerprint=msgspec.structs.replace(summary().fingerprint, config={name: commit}),
    )
    append(folder, [one])
    assert read(folder) == ((one,), ())
    compact(folder)
    assert read(folder) == ((one,), ())
