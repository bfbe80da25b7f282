"""Timelines of operations: they hold what the tables hold from which they were drawn."""

import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.api import analyze
from distprof.errors import InputError
from distprof.ingest.kinds.operation_table import read_operation_table
from distprof.ingest.kinds.timelines import (
    fits_operation_timeline,
    read_operation_timeline,
)

MS = 1_000_000
GOLDEN = Path(__file__).parents[2] / "golden" / "straggler" / "bytedance-ST"


def name(pid: int, tid: int, text: str) -> dict:
    return {"name": "thread_name", "pid": pid, "tid": tid, "ph": "M", "args": {"name": text}}


def event(kind: str, pid: int, tid: int, start_ms: float, ms: float, **args) -> dict:
    told = {"step": 7, "model_chunk": 0, "mb_id": 0, "seq_id": 0} | args
    return {"name": kind, "cat": kind, "pid": pid, "tid": tid, "ts": start_ms * 1e3,
            "dur": ms * 1e3, "ph": "X", "args": told}  # fmt: skip


EVENTS = [
    event("forward-compute", 0, 0, 10, 5),
    event("forward-compute", 0, 10, 20, 6),
    event("optimizer", 1, 5, 30, 1, model_chunk=None, mb_id=-1),
    name(0, 0, "PP rank 0, TP rank 0, compute"),
    name(1, 5, "PP rank 0, TP rank 0, compute"),
    name(0, 10, "PP rank 1, TP rank 0, compute"),
    {"name": "process_name", "pid": 1, "ph": "M", "args": {"name": "DP rank [1]"}},
]


def written(folder: Path, events: object) -> str:
    path = folder / "timeline.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return str(path)


def test_operations_are_placed_by_process_and_name_of_thread(tmp_path):
    path = written(tmp_path, EVENTS)
    assert fits_operation_timeline(path)
    log = read_operation_timeline(path)
    table = log.operations
    assert table["rank"].tolist() == [0, 1, 2]
    assert table["dp_rank"].tolist() == [0, 1, 0]
    assert table["stage"].tolist() == [0, 0, 1]
    assert table["start_ns"].tolist() == [0, 20 * MS, 10 * MS]
    assert (table["end_ns"] - table["start_ns"]).tolist() == [5 * MS, 1 * MS, 6 * MS]
    assert table["micro_batch"].tolist() == [0, -1, 0]
    assert log.mesh == {"pp": 2, "dp": 2}
    assert log.step_ns == {7: 21 * MS}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ({"traceEvents": EVENTS}, "array"),
        (EVENTS[3:], "no operation"),
        (EVENTS[:3], "without a stage in their names"),
        ([*EVENTS, name(0, 1, "PP rank 0, TP rank 1, compute")], "tensor-parallel"),
        ([*EVENTS, event("forward-compute", -1, 0, 1, 1)], "not a data-parallel index"),
        ([EVENTS[0], *EVENTS], "repeated"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, events, found):
    with pytest.raises(InputError, match=found):
        read_operation_timeline(written(tmp_path, events))


def test_a_trace_is_no_timeline_of_operations(tmp_path):
    assert not fits_operation_timeline(written(tmp_path, {"traceEvents": []}))
    assert not fits_operation_timeline(written(tmp_path, [{"ph": "X", "name": "a", "pid": 1}]))


def test_the_published_ideal_has_nothing_left_to_even_out():
    report = analyze(GOLDEN / "ideal-timeline-ST.json.gz")
    assert report.run.mesh == {"pp": 4, "dp": 2}
    assert report.step_time.num_steps == 32
    assert report.findings == ()


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=6))
def test_mutated_timelines_give_a_log_or_a_sentence(tmp_path, cuts):
    data = bytearray(json.dumps(EVENTS).encode())
    for place, value in cuts:
        data[place] = value
    path = tmp_path / "mutated.json"
    path.write_bytes(bytes(data))
    fits_operation_timeline(str(path))
    with suppress(InputError):
        assert len(read_operation_timeline(str(path)).operations)


@pytest.mark.corpus
@pytest.mark.skipif("DISTPROF_CORPUS" not in os.environ, reason="DISTPROF_CORPUS is not set")
def test_a_timeline_holds_the_operations_of_its_table():
    folder = Path(os.environ["DISTPROF_CORPUS"]) / "straggler" / "bytedance-ST"
    drawn = read_operation_timeline(str(folder / "timeline-ST.json.gz")).operations
    table = read_operation_table(str(folder / "trace-ST.parquet")).operations
    kinds = ("forward-compute", "backward-compute", "optimizer")
    for kind in kinds:
        mine, theirs = (t.coded("kind").equals(kind) for t in (drawn, table))
        assert mine.sum() == theirs.sum() > 0
        spent = [
            np.sort((t["end_ns"] - t["start_ns"])[chosen])
            for t, chosen in ((drawn, mine), (table, theirs))
        ]
        assert np.abs(spent[0] - spent[1]).max() < 2_000  # the table has float32 seconds
