"""Logs of pipelines in orders that Megatron runs, interleaved ones too, replayed against the truth.

The truth is the simulated pipeline of tests/simulator, which knows no operation log.
"""

from collections import defaultdict

import pytest

from distprof.costs.known_schedules import gpipe, interleaved_1f1b, one_f_one_b
from distprof.run.evidence import OPERATIONS, OperationLog
from distprof.schema import Coded, Table
from distprof.sections.whatif.operation_graph import lay_out
from distprof.sections.whatif.operation_replay import replay_of
from distprof.sections.whatif.operations import simulate_operations
from tests.simulator.pipeline_job import PipelineJob

MS = 1_000_000
WAYS = {"F": "forward", "B": "backward"}


def log_of(recording, *, all_messages=False) -> OperationLog:
    """As Megatron's timers would log it.

    Args:
        recording: What happened.
        all_messages: With messages off the ends of the model, which are never sent.
    """
    rows = []
    for step in recording.steps:
        slots = [slot for slot in recording.slots if slot.step == step.step]
        by_rank = [[s for s in slots if s.rank == rank] for rank in range(recording.job.world_size)]
        posted = {}
        for own in by_rank:
            posted |= posted_of(own, step.begin, recording.job.replicas)
        ends = {key(slot, slot.stage, recording.job.replicas): slot.end for slot in slots}
        for rank, own in enumerate(by_rank):
            rows += rank_rows(recording.job, own, ends, posted, step, rank, all_messages)
    return table_of(rows)


def key(slot, stage, replicas):
    return slot.letter, stage, slot.micro_batch, slot.rank % replicas


def posted_of(slots, begin, replicas):
    """A receive is posted after the last computation of its way; the first backward's earlier."""
    latest = dict.fromkeys(WAYS, begin)
    opening = next(i for i, slot in enumerate(slots) if slot.letter == "B")
    if opening >= 2:
        latest["B"] = slots[opening - 2].end
    posted = {}
    for slot in slots:
        posted[key(slot, slot.stage, replicas)] = latest[slot.letter]
        latest[slot.letter] = slot.end
    return posted


def rank_rows(job, slots, ends, posted, step, rank, all_messages):
    """Messages end when both sides are ready."""
    replicas, ranks, stages = job.replicas, job.num_positions, len(job.forward_ns)
    place = (rank, rank % replicas, rank // replicas, step.step)
    seq: dict[str, int] = defaultdict(int)

    def row(kind, start, end, stage=-1, batch=-1):
        chunk = stage // ranks if stage >= 0 else -1
        seq[kind] += 1
        start, end = start - step.begin, end - step.begin
        return (*place, kind, start, max(start, end), seq[kind] - 1, chunk, batch)

    for slot in slots:
        way, onward = WAYS[slot.letter], -1 if slot.letter == "B" else 1
        receives = posted[key(slot, slot.stage, replicas)]
        sent = ends.get(key(slot, slot.stage - onward, replicas))
        if sent is not None or all_messages:
            yield row(f"{way}-recv", receives, max(receives, sent or 0))
        yield row(f"{way}-compute", slot.start, slot.end, slot.stage, slot.micro_batch)
        awaited = posted.get(key(slot, slot.stage + onward, replicas))
        if 0 <= slot.stage + onward < stages or all_messages:
            yield row(f"{way}-send", slot.end, max(slot.end, awaited or 0))
    yield row("optimizer-clip-main-grad", step.ready[rank], step.joined)
    yield row("optimizer", step.joined, step.end)


def table_of(rows) -> OperationLog:
    import numpy as np

    names = ("rank", "dp_rank", "stage", "step", "kind", "start_ns", "end_ns", "seq", "chunk")
    values = dict(zip((*names, "micro_batch"), zip(*rows, strict=True), strict=True))
    columns = {
        column.name: Coded.encode(values[column.name])
        if column.dtype == "category"
        else np.array(values[column.name], column.dtype)
        for column in OPERATIONS
    }
    return OperationLog(operations=Table(OPERATIONS, columns), origin="operation table")


def job(orders, chunks, **more) -> PipelineJob:
    stages = len(orders) * chunks
    usual = {
        "orders": [[("FB"[a.kind], a.stage, a.micro_batch) for a in order] for order in orders],
        "forward_ns": (10 * MS,) * stages,
        "input_ns": (12 * MS,) * stages,
        "weight_ns": (8 * MS,) * stages,
        "noise": 0.05,
        "replicas": 2,
    }
    return PipelineJob(**{**usual, **more})


CASES = [
    *[(f"gpipe {p} × {m}", gpipe(p, m), 1) for p, m in ((2, 3), (4, 8))],
    *[(f"1f1b {p} × {m}", one_f_one_b(p, m), 1) for p, m in ((2, 2), (4, 8), (8, 16))],
    *[
        (f"interleaved {p} × {v} × {m}", interleaved_1f1b(p, m, v), v)
        for p, v, m in ((2, 2, 4), (4, 2, 8), (4, 3, 8), (4, 4, 4))
    ],
]


@pytest.mark.parametrize("all_messages", [False, True])
@pytest.mark.parametrize(("orders", "chunks"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_replayed_step_is_the_simulated_one(orders, chunks, all_messages):
    recording = job(orders, chunks).run()
    rows = lay_out(log_of(recording, all_messages=all_messages and chunks > 1))
    assert rows is not None
    assert rows.notes == ()
    again = replay_of(rows)
    truth = [step.end - step.begin for step in recording.steps]
    assert again.notes == ()
    assert again.measured().tolist() == truth
    assert again.simulated().tolist() == pytest.approx(truth, rel=0.002)


@pytest.mark.parametrize("slow", [0, 2, 3])
def test_a_long_stage_of_an_interleaved_pipeline_is_the_one_that_is_named(slow):
    lengths = [(13 if stage % 4 == slow else 10) * MS for stage in range(8)]
    orders = interleaved_1f1b(4, 16, 2)
    made = job(orders, 2, forward_ns=lengths, input_ns=lengths, weight_ns=lengths, noise=0.0)
    result = simulate_operations(log_of(made.run()))
    names = ("forward_ns", "input_ns", "weight_ns")
    mean = sum(lengths) // len(lengths)
    balanced = job(orders, 2, noise=0.0, **dict.fromkeys(names, (mean,) * 8)).run()
    assert result.replayed_ns == result.step_ns
    longest = max(result.stages, key=lambda stage: stage.slowdown)
    assert longest.stage == slow
    step = next(s.step_ns for s in result.without if s.what == "stage-imbalance")
    truth = balanced.steps[0].end - balanced.steps[0].begin
    assert step == pytest.approx(truth, rel=0.01)
