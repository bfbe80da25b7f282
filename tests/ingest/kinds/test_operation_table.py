"""Operation tables: what is read, and what is refused, with the column and the way out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds import operation_table
from distprof.ingest.kinds.operation_table import fits_operation_table, read_operation_table
from tests.operation_logs import BY_HAND, MS, log_of, write_table

GOLDEN = Path(__file__).parents[2] / "golden" / "straggler" / "bytedance-ST"
COUNT = len(BY_HAND)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace-X.parquet"


def refused(path) -> str:
    assert fits_operation_table(str(path))
    with pytest.raises(InputError) as error:
        read_operation_table(str(path))
    assert error.value.fix
    return str(error.value)


# What is read -------------------------------------------------------------------------------------


def test_a_written_log_is_read_as_it_was(path):
    log = log_of(BY_HAND, steps=(3, 9))
    again = read_operation_table(str(write_table(path, log)))
    for name in ("rank", "dp_rank", "stage", "step", "start_ns", "end_ns", "seq", "micro_batch"):
        keys = ("seq", "start_ns", "step", "rank")
        order = np.lexsort([log.operations[key] for key in keys])
        back = np.lexsort([again.operations[key] for key in keys])
        assert again.operations[name][back].tolist() == log.operations[name][order].tolist()
    assert again.step_ns == {3: 157 * MS, 9: 157 * MS}
    assert again.num_micro_batches == 2
    assert again.mesh == {"pp": 2, "dp": 1}
    assert again.world_size is None
    assert again.notes == ()


def test_steps_begin_with_their_first_operation(path):
    log = log_of(BY_HAND)
    start = log.operations["start_ns"] / 1e9 + 1_700_000_000.0
    again = read_operation_table(str(write_table(path, log, start_ts=start)))
    assert again.operations["start_ns"].min() == 0
    assert again.step_ns[7] == pytest.approx(157 * MS, abs=1_000)  # float64 of a time of day


def test_published_table_says_its_sizes():
    log = read_operation_table(str(GOLDEN / "trace-ST.parquet"))
    assert (log.world_size, log.num_micro_batches, len(log.step_ns)) == (8, 4, 32)
    assert log.mesh == {"pp": 4, "dp": 2}
    assert len(log.operations) == 6_784
    assert log.step_ns[23] == 2_381_652_117  # 2.3816521 s as float32


def test_a_folder_with_one_table_is_that_table():
    assert fits_operation_table(str(GOLDEN))
    assert len(read_operation_table(str(GOLDEN)).operations) == 6_784


def test_a_url_is_read(path):
    fsspec = pytest.importorskip("fsspec")
    write_table(path, log_of(BY_HAND))
    with fsspec.open("memory://job/table.parquet", "wb") as stream:
        stream.write(path.read_bytes())
    assert fits_operation_table("memory://job/table.parquet")
    assert len(read_operation_table("memory://job/table.parquet").operations) == COUNT


@pytest.mark.parametrize("name", ["", "nothing.parquet", "s3://bucket/run", "notes.txt", "a\0b"])
def test_what_is_no_table_is_left_to_others(name):
    assert not fits_operation_table(name)


def test_folders_of_runs_and_of_several_tables_are_left_to_others(tmp_path):
    assert not fits_operation_table(str(tmp_path))
    write_table(tmp_path / "a.parquet", log_of(BY_HAND))
    (tmp_path / "run.json").write_text("{}")
    assert not fits_operation_table(str(tmp_path))
    (tmp_path / "run.json").unlink()
    write_table(tmp_path / "b.parquet", log_of(BY_HAND))
    assert not fits_operation_table(str(tmp_path))


def test_a_folder_of_traces_may_hold_another_table(tmp_path):
    pq.write_table(pa.table({"loss": [1.0]}), tmp_path / "losses.parquet")
    assert not fits_operation_table(str(tmp_path))
    (tmp_path / "losses.parquet").write_bytes(b"PAR1")
    assert not fits_operation_table(str(tmp_path))


def test_a_run_and_a_report_come_of_it(tmp_path):
    path = write_table(tmp_path / "t.parquet", log_of(BY_HAND))
    run = distprof.open_run(path)
    assert run.ranks == ()
    report = distprof.analyze(run)
    assert report.whatif.replayed_ns == 157 * MS
    assert report.step_time.median_ns == 157 * MS
    assert report.run.mesh == {"pp": 2, "dp": 1}
    assert report.whatif.without[0].recoverable_ns == 30 * MS


def test_negative_durations_are_counted_and_said(path):
    log = log_of(BY_HAND)
    duration = (log.operations["end_ns"] - log.operations["start_ns"]) / 1e9
    duration[3] = -0.5
    again = read_operation_table(str(write_table(path, log, duration=duration)))
    assert (again.operations["end_ns"] >= again.operations["start_ns"]).all()
    assert again.notes == ("Negative durations, counted as 0: 1 of 20.",)


def test_chunks_that_are_not_dealt_in_turn_are_said(path):
    gmc = np.arange(COUNT) % 3
    again = read_operation_table(str(write_table(path, log_of(BY_HAND), gmc=gmc)))
    assert "not assigned to stages round-robin" in again.notes[0]


def test_missing_rows_of_the_mesh_are_said(path):
    write_table(path, log_of(BY_HAND))
    path.with_name("meta-X.yaml").write_text("dp_size: 4\npp_size: 2\n")
    log = read_operation_table(str(path))
    assert log.mesh == {"pp": 2, "dp": 4}
    assert log.notes == ("The table has operations for 1 of 4 values of dp_rank.",)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["dp_rank", "optype", "start_ts", "seq_id", "mb_id"])
def test_a_missing_column_is_named(path, column):
    assert f"no {column};" in refused(write_table(path, log_of(BY_HAND), **{column: None}))


@pytest.mark.parametrize("column", ["dp_rank", "optype", "gmc"])
def test_a_column_that_is_there_twice_is_named(path, column):
    write_table(path, log_of(BY_HAND), gmc=[0] * len(log_of(BY_HAND).operations))
    table = pq.read_table(path)
    pq.write_table(table.append_column(column, table.column(column)), path)
    assert f"2 columns {column}" in refused(path)


def test_a_table_of_something_else_is_told_by_its_columns(path):
    pq.write_table(pa.table({"price": [1.0], "day": ["Monday"]}), path)
    message = refused(path)
    assert "columns present: day, price" in message
    assert "dp_rank, stage, rank" in message


def test_a_table_without_rows_is_refused(path):
    columns = {name: pa.array([], pa.int64()) for name in operation_table.COLUMNS}
    pq.write_table(pa.table({**columns, "optype": pa.array([], pa.string())}), path)
    assert "without rows" in refused(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["start_ts", "duration"])
def test_numbers_that_are_none_are_counted(path, column, bad):
    values = np.linspace(0, 1, COUNT)
    values[[4, 5]] = bad
    message = refused(write_table(path, log_of(BY_HAND), **{column: values}))
    assert f"finite numbers in column {column}" in message
    assert "in row 4 and 1 others" in message


@pytest.mark.parametrize("column", ["rank", "duration", "optype"])
def test_missing_values_are_counted(path, column):
    values = [None, *[("a" if column == "optype" else 1)] * (COUNT - 1)]
    message = refused(write_table(path, log_of(BY_HAND), **{column: values}))
    assert f"in column {column}" in message
    assert "1 " in message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rank", ["a"] * COUNT),
        ("rank", np.full(COUNT, -3)),
        ("stage", np.full(COUNT, 2**40)),
        ("step", np.linspace(0, 1, COUNT)),
        ("optype", list(range(COUNT))),
        ("start_ts", ["now"] * COUNT),
        ("mc", [[1]] * COUNT),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_column(path, column, value):
    assert f"in column {column}" in refused(write_table(path, log_of(BY_HAND), **{column: value}))


def test_times_in_another_unit_are_told(path):
    log = log_of(BY_HAND)
    assert "divide by 1e9" in refused(
        write_table(path, log, start_ts=log.operations["start_ns"] * 1.0)
    )


def test_an_operation_twice_is_refused(path):
    message = refused(write_table(path, log_of((*BY_HAND, BY_HAND[0]))))
    assert "in column seq_id" in message
    assert "1 repeated" in message


def test_a_rank_in_two_places_is_refused(path):
    assert "rank 0 has more than one" in refused(
        write_table(path, log_of(BY_HAND), rank=np.zeros(COUNT, int))
    )


def test_two_ranks_in_one_place_are_refused(path):
    assert "in column dp_rank and stage" in refused(
        write_table(path, log_of(BY_HAND), rank=np.arange(COUNT))
    )


def test_too_many_rows_are_refused_before_they_are_read(path, monkeypatch):
    monkeypatch.setattr(operation_table, "BOUND", replace(operation_table.BOUND, rows=10))
    message = refused(write_table(path, log_of(BY_HAND)))
    assert "at most 10 operations" in message


def test_too_many_kinds_are_refused(path, monkeypatch):
    monkeypatch.setattr(operation_table, "MAX_KINDS", 3)
    assert "at most 3 kinds" in refused(write_table(path, log_of(BY_HAND)))


@pytest.mark.parametrize("size", [0, 4, 100, 1_000])
def test_a_file_cut_short_is_an_input_error(path, size):
    whole = write_table(path, log_of(BY_HAND)).read_bytes()
    path.write_bytes(whole[:size])
    assert "check that the file is complete" in refused(path)


def test_a_file_damaged_in_the_middle_is_an_input_error_or_read(path):
    whole = bytearray(write_table(path, log_of(BY_HAND)).read_bytes())
    rng = np.random.default_rng(5)
    for _ in range(60):
        damaged = whole.copy()
        for place in rng.integers(4, len(whole) - 8, 6).tolist():
            damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            read_operation_table(str(path))
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right


def test_a_kind_that_is_not_utf8_is_refused_with_a_sentence(tmp_path):
    path = write_table(tmp_path / "t.parquet", log_of(BY_HAND))
    pq.write_table(pq.read_table(path), path, compression="none")
    path.write_bytes(path.read_bytes().replace(b"forward-compute", b"forward-c\x90mpute"))
    with pytest.raises(InputError, match="in column optype"):
        read_operation_table(str(path))


def test_a_name_of_a_column_that_is_not_utf8_is_refused_with_a_sentence(tmp_path):
    path = write_table(tmp_path / "t.parquet", log_of(BY_HAND))
    path.write_bytes(path.read_bytes().replace(b"optype", b"opt\x90pe"))
    with pytest.raises(InputError, match="utf-8"):
        read_operation_table(str(path))
