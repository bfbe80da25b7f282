"""Pipelines of logs: a Megatron timeline, an operation table, and rows by hand."""

import os
from pathlib import Path

import pytest

import distprof
from distprof.run.evidence import OPERATIONS, OperationLog
from distprof.sections.pipeline.measure import NO_STAGES, analyze_pipeline
from distprof.sections.pipeline.sources import pipelines_of_log
from distprof.terms import Confidence, SlotKind
from tests.builders import make_run, table_of

GOLDEN = Path(__file__).parents[2] / "golden"
PARTS = ("warm_up_drain_ns", "imbalance_ns", "variation_ns", "exposed_p2p_ns", "host_ns")


def row(rank, kind, batch, start, end, *, dp=0, chunk=0, step=1):
    return {
        "rank": rank,
        "dp_rank": dp,
        "stage": rank % 2,
        "step": step,
        "kind": kind,
        "start_ns": start,
        "end_ns": end,
        "chunk": chunk,
        "micro_batch": batch,
    }


def log_of(*rows, **more):
    return OperationLog(operations=table_of(OPERATIONS, rows), origin="by hand", **more)


ONE = (
    row(0, "forward-compute", 0, 0, 10),
    row(1, "forward-compute", 0, 12, 22),
    row(1, "backward-compute", 0, 22, 42),
    row(0, "backward-compute", 0, 44, 64),
)


def pipeline_of(log):
    return analyze_pipeline(make_run([]).having(log), {})


def test_a_log_by_hand_has_its_bubble_and_messages():
    (group,) = pipeline_of(log_of(*ONE, step_ns={1: 70})).groups
    assert (group.span_ns, group.work_ns, group.idle_ns, group.step_ns) == (64, 30, 34, 70)
    assert (group.warm_up_drain_ns, group.exposed_p2p_ns, group.host_ns) == (30, 4, 0)
    assert group.confidence is Confidence.MEASURED


def test_every_data_parallel_rank_is_a_pipeline():
    rows = [dict(part, rank=part["rank"] + 2 * dp, dp_rank=dp) for part in ONE for dp in range(3)]
    (group,) = pipeline_of(log_of(*rows)).groups
    assert group.replicas == ((0, 1), (2, 3), (4, 5))


def test_chunks_are_stages_behind_each_other():
    rows = [
        row(rank, kind, 0, start, start + 5, chunk=chunk)
        for start, (rank, chunk, kind) in enumerate(
            [(0, 0, "forward-compute"), (1, 0, "forward-compute"), (0, 1, "forward-compute")]
        )
    ]
    (pipeline,) = pipelines_of_log(log_of(*rows))
    assert pipeline.slots[0].stage.tolist() == [0, 2]
    assert pipeline.slots[1].stage.tolist() == [1]
    assert pipeline.slots[0].kind.tolist() == [SlotKind.FORWARD] * 2


def test_a_place_that_the_mesh_has_and_the_log_lacks_is_missing():
    rows = [part for part in ONE if part["rank"] == 0]
    (group,) = pipeline_of(log_of(*rows, mesh={"pp": 2})).groups
    assert group.stages == 2
    assert group.warm_up_drain_ns is None
    assert "1 of the pipeline's 2 stages were recorded (missing: 1)" in group.notes[0]


def test_steps_do_not_run_into_each_other():
    rows = [dict(part, step=step) for part in ONE for step in (3, 8)]
    (group,) = pipeline_of(log_of(*rows)).groups
    assert (group.num_steps, group.span_ns) == (2, 64)


def test_a_log_without_stages_has_no_pipeline():
    result = pipeline_of(log_of(dict(ONE[0], stage=-1)))
    assert (result.groups, result.unavailable) == ((), (NO_STAGES,))
    assert pipeline_of(log_of()).groups == ()


def test_a_real_timeline():
    run = distprof.open_run(str(GOLDEN / "pipeline" / "primus-pp8-8gpu"))
    (group,) = analyze_pipeline(run, {}).groups
    assert (group.schedule, group.stages, group.num_micro_batches) == ("1f1b", 8, 16)
    assert group.ideal_bubble_fraction == pytest.approx(7 / 23)
    assert sum(getattr(group, part) for part in PARTS) == group.idle_ns
    assert group.bubble_fraction == pytest.approx(0.365, abs=0.001)
    assert (group.limiting_stage, group.comparable_clocks) == (7, True)
    assert [stage.in_flight for stage in group.stages_detail] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert abs(group.prediction_error_ratio) < 0.05


def test_a_real_operation_table_whose_last_stage_is_too_long():
    pytest.importorskip("pyarrow")
    run = distprof.open_run(str(GOLDEN / "straggler" / "bytedance-ST"))
    (group,) = analyze_pipeline(run, {}).groups
    assert (group.schedule, group.limiting_stage, len(group.replicas)) == ("1f1b", 3, 2)
    assert group.ideal_bubble_fraction == pytest.approx(3 / 7)
    causes = {part: getattr(group, part) for part in PARTS[1:]}
    assert max(causes, key=causes.__getitem__) == "imbalance_ns"
    assert abs(group.model_error_ratio) < 0.01


@pytest.mark.corpus
def test_all_iterations_of_the_real_timeline():
    corpus = os.environ.get("DISTPROF_CORPUS")
    if not corpus:
        pytest.skip("DISTPROF_CORPUS names no folder of real traces")
    run = distprof.open_run(str(Path(corpus) / "pipeline" / "primus-pp8-8gpu"))
    (group,) = analyze_pipeline(run, {}).groups
    assert group.num_steps == 19
    assert group.bubble_fraction == pytest.approx(0.356, abs=0.001)
    assert sum(getattr(group, part) for part in PARTS) == group.idle_ns
