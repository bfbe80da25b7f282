"""Work of pipeline stages from their marks, by hand."""

import pytest

from distprof.sections.context import RankAnalyses
from distprof.sections.pipeline.measure import NO_MARKS, analyze_pipeline
from distprof.sections.stragglers.measure import analyze_messages
from distprof.terms import ActivityKind
from tests.builders import RankBuilder, make_run
from tests.sections.measured import measured


def mark(stage, op, batch):
    return f"distprof:pp stage={stage} op={op} mb={batch}"


def rank_of(number, *, stages, batches=2, steps=3, idle=0):
    """Steps of 1,000 ns; ``stages`` says how long each works on a micro-batch, forward only.

    First it idles for its host, and at the end it waits for a message for 100 ns.
    """
    builder = RankBuilder(number)
    for step in range(steps):
        low = 1_000 * step
        builder.step(step, low, low + 1_000)
        now = low + idle
        for batch in range(batches):
            for stage, work in stages.items():
                builder.annotation(mark(stage, "F", batch), now, now + work)
                builder.kernel("gemm", now, now + work, launched=(now, now + 1))
                now += work
        builder.kernel("wait", low + 900, low + 1_000, kind=ActivityKind.WAITING)
    return measured(builder)


def pipeline_of(*ranks):
    return analyze_pipeline(make_run([]), RankAnalyses.of(ranks))


def test_without_marks_there_is_no_pipeline():
    result = analyze_pipeline(
        make_run([]), {0: measured(RankBuilder(0).step(0, 0, 10).kernel("gemm", 0, 5))}
    )
    assert (result.positions, result.ranks, result.unavailable) == ((), (), (NO_MARKS,))


def test_two_stages_with_two_micro_batches():
    result = pipeline_of(rank_of(0, stages={0: 100}), rank_of(1, stages={1: 160}))
    first, second = result.positions
    assert (first.stages, first.ranks, first.num_micro_batches) == ((0,), (0,), 2)
    assert (first.work_ns_per_step, first.work_ns_per_micro_batch) == (200, 100)
    assert (second.work_ns_per_step, second.work_ns_per_micro_batch) == (320, 160)
    assert second.excess_ratio == pytest.approx(0.6)
    assert second.chance < 1e-6
    assert first.chance == 1
    assert result.max_over_mean == pytest.approx(320 / 260)
    assert result.lost_ns_per_step == 30  # half of what lies beyond the mean
    assert result.step_ns == 1_000


def test_what_is_neither_work_nor_waiting_is_other():
    (rank,) = pipeline_of(rank_of(0, stages={0: 100})).ranks
    assert (rank.work_ns_per_step, rank.wait_ns_per_step, rank.other_ns_per_step) == (200, 100, 700)


def test_idling_inside_a_mark_is_no_work():
    builder = RankBuilder(0).step(0, 0, 100).annotation(mark(0, "F", 0), 0, 80)
    builder.kernel("gemm", 0, 30)
    (position,) = pipeline_of(measured(builder, is_cpu=True)).positions
    assert position.work_ns_per_step == 30


def test_halves_of_a_backward_are_one_micro_batch():
    builder = RankBuilder(0).step(0, 0, 100).kernel("gemm", 0, 60)
    for start, op in ((0, "F"), (20, "I"), (40, "W")):
        builder.annotation(mark(0, op, 7), start, start + 20)
    (position,) = pipeline_of(measured(builder, is_cpu=True)).positions
    assert (position.work_ns_per_step, position.num_micro_batches) == (60, 1)


def test_a_rank_with_several_stages_is_one_position():
    result = pipeline_of(rank_of(0, stages={0: 50, 3: 60}), rank_of(1, stages={1: 50, 2: 60}))
    assert [position.stages for position in result.positions] == [(0, 3), (1, 2)]
    assert [position.work_ns_per_step for position in result.positions] == [220, 220]


def test_one_slow_rank_of_several_does_not_make_its_stage_slow():
    ranks = [rank_of(rank, stages={rank // 2: 100 if rank != 3 else 150}) for rank in range(4)]
    result = pipeline_of(*ranks)
    assert [position.ranks for position in result.positions] == [(0, 1), (2, 3)]
    assert [position.excess_ratio for position in result.positions] == [0, 0]


def test_a_name_that_is_almost_a_mark_is_none():
    for name in (
        "distprof:pp_wait",
        "distprof:pp stage=x op=F mb=1",
        "PP:0F1",
        mark(0, "F", 1) + "!",
    ):
        builder = RankBuilder(0).step(0, 0, 10).annotation(name, 0, 5).kernel("gemm", 0, 5)
        assert measured(builder).stages == ()


def test_on_a_device_its_own_marks_count():
    builder = RankBuilder(0).step(0, 0, 100).annotation(mark(0, "F", 0), 0, 10)
    builder.range(mark(0, "F", 0), 20, 80).kernel("gemm", 30, 70, launched=(0, 5))
    (stage,) = measured(builder).stages
    assert stage.work_ns.tolist() == [40]


# Messages -----------------------------------------------------------------------------------------


def test_the_rank_whose_host_stalls_while_others_wait_for_messages():
    ranks = [rank_of(rank, stages={rank: 100}, idle=300 if rank == 1 else 0) for rank in range(3)]
    result = analyze_messages(make_run([]), RankAnalyses.of(ranks))
    assert result.step_ns == 1_000
    assert [rank.wait_ns_per_step for rank in result.ranks] == [100, 100, 100]
    late = {rank.rank: rank.late_ns_per_step for rank in result.ranks}
    assert late[0] == late[2] == 0
    assert late[1] > 0
    assert result.ranks[1].chance < 1e-6


def test_without_waiting_for_messages_there_is_nothing_to_say():
    analysis = measured(RankBuilder(0).step(0, 0, 10).kernel("gemm", 0, 5))
    assert analyze_messages(make_run([]), RankAnalyses.of([analysis])).ranks == ()
    assert analyze_messages(make_run([]), RankAnalyses.of([])).ranks == ()
