"""The plan of repairs of operation logs, against the same logs made without their faults."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.api import analyze
from distprof.documents.saved import Report
from distprof.run.evidence import OperationLog
from distprof.sections.pipeline import PipelineResult
from distprof.sections.pipeline.groups import groups_of
from distprof.sections.pipeline.sources import pipelines_of_log
from distprof.sections.whatif import RepairPlan
from distprof.sections.whatif.operations import simulate_operations
from distprof.sections.whatif.plan import Workbench
from tests.operation_logs import BY_HAND, MS, Length, joined, log_of, pipeline_rows, write_table

EVERYTHING = (
    "slowest-workers",
    "stage-imbalance",
    "micro-batch-imbalance",
    "micro-batches",
    "schedule",
    "launch-gaps",
)
SHAPE = {"dp": 4, "stages": 4, "micro_batches": 4}


def made(length: Length, **shape: int) -> OperationLog:
    return log_of(pipeline_rows(length, **{**SHAPE, **shape}), unit=1)


def true_step_ns(length: Length, **shape: int) -> int:
    """The step of a job that runs so."""
    rows = pipeline_rows(length, **{**SHAPE, **shape})
    return max(row[5] for row in rows)


def plan_of(log: OperationLog, *claimed: str) -> RepairPlan:
    """The plan where findings name these scenarios, whatever rules say."""
    bench = Workbench()
    simulate_operations(log, PipelineResult(groups=groups_of(pipelines_of_log(log))), bench)
    bench.price(claimed)
    return bench.plan


def test_balanced_stages_by_hand() -> None:
    """See test_operations: stages of 10 and 20, 20 and 40 ms take 157 ms, of 15 and 30 142."""
    plan = plan_of(log_of(BY_HAND), "stage-imbalance")
    (repair,) = plan.repairs
    assert (plan.step_ns, repair.step_ns, repair.gain_ns) == (157 * MS, 142 * MS, 15 * MS)
    assert repair.done == "stages balanced"


def test_late_launches_by_hand() -> None:
    """The optimizer starts 10 ms late: 167 ms, of which 10 go with late launches."""
    rows = [
        (d, s, kind, seq, start + 10 * (kind == "optimizer"), end + 10 * (kind == "optimizer"))
        for d, s, kind, seq, start, end in BY_HAND
    ]
    plan = plan_of(log_of(rows), "launch-gaps", "stage-imbalance")
    assert plan.step_ns == 167 * MS
    assert [(one.what, one.step_ns) for one in plan.repairs] == [
        ("stage-imbalance", 152 * MS),
        ("launch-gaps", 142 * MS),
    ]


def long_stage(_: int, stage: int, kind: str, __: int) -> int:
    return MS * (3 if stage == 3 else 1) * (2 if kind[0] == "b" else 1)


def even(_: int, __: int, kind: str, ___: int) -> int:
    return 3 * MS // 2 * (2 if kind[0] == "b" else 1)


def test_more_micro_batches_are_priced_with_the_stages_balanced_before() -> None:
    """The same batch in four times as many micro-batches, each a quarter of the size."""
    plan = plan_of(made(long_stage), "micro-batches", "stage-imbalance")
    assert [one.what for one in plan.repairs] == ["stage-imbalance", "micro-batches"]
    balanced, refilled = plan.repairs
    assert balanced.step_ns == pytest.approx(true_step_ns(even), rel=0.01)
    truth = true_step_ns(lambda *key: even(*key) // 4, micro_batches=16)
    assert refilled.step_ns == pytest.approx(truth, rel=0.01)
    assert refilled.done == "16 micro-batches instead of 4, same batch"


def test_more_micro_batches_alone_leave_the_long_stage() -> None:
    plan = plan_of(made(long_stage), "micro-batches")
    truth = true_step_ns(lambda *key: long_stage(*key) // 4, micro_batches=16)
    assert plan.repairs[0].step_ns == pytest.approx(truth, rel=0.01)


def uneven(dp_rank: int, _: int, kind: str, batch: int) -> int:
    """Sequences of different lengths."""
    return MS * (1 + (7 * dp_rank + 3 * batch) % 5) * (2 if kind[0] == "b" else 1)


def test_levelled_micro_batches_and_stages_meet_at_one_operation() -> None:
    def both(dp_rank: int, stage: int, kind: str, batch: int) -> int:
        return uneven(dp_rank, stage, kind, batch) * (2 if stage == 3 else 1)

    shape = {"dp": 5, "micro_batches": 5}  # every length equally often
    plan = plan_of(made(both, **shape), "stage-imbalance", "micro-batch-imbalance")
    assert len(plan.repairs) == 2
    truth = true_step_ns(lambda _, __, k, ___: 15 * MS // 4 * (2 if k[0] == "b" else 1), **shape)
    assert plan.repairs[-1].step_ns == pytest.approx(truth, rel=0.01)


def test_a_slow_worker_is_mended_and_the_step_lands_where_it_does_without() -> None:
    def slow(dp_rank: int, stage: int, *_: object) -> int:
        return MS * (2 if (dp_rank, stage) == (5, 2) else 1)

    shape = {"dp": 8, "micro_batches": 8}
    plan = plan_of(made(slow, **shape), "slowest-workers", "micro-batch-imbalance")
    first = plan.repairs[0]
    assert (first.what, first.done) == ("slowest-workers", "rank 22 fixed")
    assert first.step_ns == pytest.approx(true_step_ns(lambda *_: MS, **shape), rel=0.05)


def test_a_transfer_that_is_slow_now_and_then_is_a_repair() -> None:
    rows = pipeline_rows(lambda *_: MS, dp=2, stages=2, micro_batches=2)
    late = [
        (d, s, k, q, a, b + (4 * MS if (k, s) == ("optimizer-clip-main-grad", 0) else 0))
        for d, s, k, q, a, b in rows
    ]
    plan = plan_of(log_of(late, unit=1), "kind optimizer-clip-main-grad", "kind forward-compute")
    assert [one.what for one in plan.repairs] == ["kind optimizer-clip-main-grad"]
    assert plan.repairs[0].done == "optimizer-clip-main-grad at its median"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("log") / "t.parquet"
    return analyze(write_table(path, made(long_stage)))


def test_verdict_first_finding_and_plan_say_the_same(report: Report) -> None:
    first = report.findings[0]
    assert report.plan.repairs[0].what == "stage-imbalance"
    assert first.code == "PIP101"
    assert report.verdict.headline == first.headline
    assert first.remaining_ns == report.plan.repairs[0].gain_ns


def test_no_two_findings_promise_the_same_time(report: Report) -> None:
    promised = [one.remaining_ns for one in report.findings if one.remaining_ns]
    assert len(set(promised)) == len(promised)
    assert sum(promised) <= (report.plan.step_ns or 0)


@st.composite
def jobs(draw: st.DrawFn) -> OperationLog:
    """A job of a few steps, lengths of computation drawn for every operation."""
    shape = {
        "dp": draw(st.integers(1, 4)),
        "stages": draw(st.integers(1, 4)),
        "micro_batches": draw(st.integers(1, 5)),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return joined(
        [
            log_of(
                pipeline_rows(lambda *_: int(rng.integers(1_000, 9_000)), **shape),
                unit=1,
                steps=(step,),
            )
            for step in range(draw(st.integers(1, 3)))
        ]
    )


@settings(max_examples=30, deadline=None)
@given(jobs(), st.permutations(EVERYTHING))
def test_steps_of_a_plan_never_grow_and_its_gains_add_up(
    log: OperationLog, claimed: list[str]
) -> None:
    plan = plan_of(log, *claimed)
    steps = [plan.step_ns, *(one.step_ns for one in plan.repairs)]
    assert all(after < before for before, after in pairwise(steps))
    assert plan.step_ns == steps[-1] + sum(one.gain_ns for one in plan.repairs)
    assert {one.what for one in plan.repairs} <= set(claimed)


@settings(max_examples=15, deadline=None)
@given(jobs(), st.integers(2, 9))
def test_another_unit_of_time_changes_no_plan(log: OperationLog, factor: int) -> None:
    table = log.operations
    columns = {name: table[name] * factor for name in ("start_ns", "end_ns")}
    slower = replace(
        log,
        operations=table.with_columns(**columns),
        step_ns={step: ns * factor for step, ns in log.step_ns.items()},
    )
    one, other = (
        plan_of(each, "stage-imbalance", "micro-batch-imbalance") for each in (log, slower)
    )
    if [r.what for r in one.repairs] == [r.what for r in other.repairs]:
        for mine, theirs in zip(one.repairs, other.repairs, strict=True):
            assert theirs.step_ns == pytest.approx(mine.step_ns * factor, rel=0.01)
