"""Pipelines put together from ranks: whole, halved, unclocked, repeated, and without marks."""

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.run.run import ClockAlignment
from distprof.run.topology import ProcessGroup
from distprof.sections.context import RankAnalyses
from distprof.sections.own_time import held_stages
from distprof.sections.pipeline.measure import analyze_pipeline
from distprof.sections.pipeline.sources import SOURCE
from distprof.terms import CollectiveKind, Confidence, MeshAxis
from tests.builders import RankBuilder, make_run
from tests.sections.measured import measure

# 1F1B on two ranks, two micro-batches; forward 10, backward 20: a bubble of one slot of each.
ORDER = (
    (("F", 0, 0), ("F", 1, 10), ("B", 0, 40), ("B", 1, 70)),
    (("F", 0, 10), ("B", 0, 20), ("F", 1, 40), ("B", 1, 50)),
)
LENGTH = {"F": 10, "B": 20}


def rank_of(number, place, *, steps=(0,), name="distprof:pp stage={place} op={op} mb={batch}"):
    builder = RankBuilder(number)
    for step in steps:
        low = 1_000 * step
        builder.step(step, low, low + 100)
        for op, batch, start in ORDER[place]:
            begin, end = low + start, low + start + LENGTH[op]
            builder.range(name.format(place=place, op=op, batch=batch), begin, end)
            builder.kernel("gemm", begin, end)
    return builder.rank()


def pp_group(*ranks):
    return ProcessGroup(
        name="pp",
        description="mesh_pp",
        ranks=ranks,
        size=len(ranks),
        backend="nccl",
        axis=MeshAxis.PP,
    )


def analysed(ranks, **more):
    run = make_run(ranks, steps=more.pop("steps", (0,)), **more)
    return analyze_pipeline(run, measure(run).analyses)


def test_a_pipeline_by_hand():
    (group,) = analysed([rank_of(0, 0), rank_of(1, 1)]).groups
    assert (group.schedule, group.ranks, group.stages) == ("1f1b", (0, 1), 2)
    assert (group.span_ns, group.work_ns, group.idle_ns) == (90, 60, 30)
    assert group.bubble_fraction == pytest.approx(1 / 3)
    assert group.ideal_bubble_fraction == pytest.approx(1 / 3)
    assert (group.warm_up_drain_ns, group.host_ns, group.exposed_p2p_ns) == (30, 0, 0)
    assert [stage.in_flight for stage in group.stages_detail] == [2, 1]
    assert [stage.forward_ns for stage in group.stages_detail] == [10, 10]
    assert [stage.backward_ns for stage in group.stages_detail] == [20, 20]
    assert group.confidence is Confidence.MEASURED
    assert len(group.picture) == 8


def test_replicas_of_one_shape_are_one_group():
    ranks = [rank_of(rank, rank // 2) for rank in range(4)]
    groups = [pp_group(0, 3), pp_group(1, 2)]
    (group,) = analysed(ranks, groups=groups).groups
    assert group.replicas == ((0, 3), (1, 2))


def test_without_groups_the_first_ranks_of_each_stage_form_a_pipeline_and_it_is_said():
    (group,) = analysed([rank_of(rank, rank // 2) for rank in range(4)]).groups
    assert group.replicas == ((0, 2), (1, 3))
    assert "inferred from their numerical order" in group.notes[0]


def test_half_a_pipeline_has_a_bubble_but_no_causes():
    (group,) = analysed([rank_of(0, 0)], groups=[pp_group(0, 1)]).groups
    assert group.stages == 2
    assert group.bubble_fraction == pytest.approx(1 / 3)
    assert group.schedule == "gpipe or 1f1b"  # the first rank does the same in both
    assert group.warm_up_drain_ns is None
    assert group.predictions == ()
    assert "1 of the pipeline's 2 stages were recorded (missing: 1)" in group.notes[0]


def test_the_last_half_knows_that_stages_come_before_it():
    (group,) = analysed([rank_of(1, 1)]).groups
    assert group.stages == 2
    assert group.warm_up_drain_ns is None


def test_torchs_plain_names_take_their_stage_from_the_group():
    ranks = []
    for number in range(2):
        builder = RankBuilder(number).step(0, 0, 100)
        for op, batch, start in ORDER[number]:
            word = "Forward" if op == "F" else "Backward"
            builder.range(f"{word} {batch}", start, start + LENGTH[op])
            builder.kernel("gemm", start, start + LENGTH[op])
        ranks.append(builder.rank())
    (group,) = analysed(ranks, groups=[pp_group(0, 1)]).groups
    assert (group.stages, group.schedule, group.source) == (2, "1f1b", "torch annotations")
    assert group.confidence is Confidence.INFERRED


def test_ranks_without_a_common_clock_have_the_longest_own_span():
    apart = ClockAlignment(
        domains=((0,), (1,)),
        names=("rank 0", "rank 1"),
        offset_ns=np.zeros(2),
        drift_ratio=np.zeros(2),
        reference_ns=0,
        residual_ns=np.array([-1, -1], dtype=np.int64),
        component=np.array([0, 1], dtype=np.int32),
    )
    (group,) = analysed([rank_of(0, 0), rank_of(1, 1)], clock=apart).groups
    assert not group.comparable_clocks
    assert (group.span_ns, group.idle_ns, group.exposed_p2p_ns) == (90, 30, 0)
    assert group.confidence is Confidence.INFERRED
    assert "cannot be compared" in group.notes[-1]


def test_steps_in_another_order_are_left_out_and_counted():
    first = rank_of(0, 0, steps=(0, 1, 2))
    builder = RankBuilder(1)
    for step in range(3):
        low = 1_000 * step
        builder.step(step, low, low + 100)
        for op, batch, start in ORDER[1]:
            other = 1 - batch if step == 1 else batch
            begin, end = low + start, low + start + LENGTH[op]
            builder.range(f"PP:1{op}{other}", begin, end).kernel("gemm", begin, end)
    (group,) = analysed([first, builder.rank()], steps=(0, 1, 2)).groups
    assert group.num_steps == 2
    assert "1 more steps had another order" in group.notes[0]


def test_a_schedule_run_twice_in_a_step_counts_twice():
    ranks = []
    for number in range(2):
        builder = RankBuilder(number).step(0, 0, 300)
        for low in (0, 150):
            for op, batch, start in ORDER[number]:
                begin, end = low + start, low + start + LENGTH[op]
                builder.range(f"PP:{number}{op}{batch}", begin, end).kernel("gemm", begin, end)
        ranks.append(builder.rank())
    (group,) = analysed(ranks).groups
    assert (group.num_steps, group.span_ns, group.num_micro_batches) == (2, 90, 2)


def test_marks_without_kernels_give_no_causes():
    ranks = []
    for number in range(2):
        builder = RankBuilder(number).step(0, 0, 100).kernel("elsewhere", 95, 99)
        for op, batch, start in ORDER[number]:
            builder.range(f"PP:{number}{op}{batch}", start, start + LENGTH[op])
        ranks.append(builder.rank())
    (group,) = analysed(ranks).groups
    assert group.warm_up_drain_ns is None
    assert group.limiting_stage is None


# Without marks ------------------------------------------------------------------------------------


def messages(number, peers, *, count=3, order=("SEND", "RECV"), kernels=("gemm",), at_once=False):
    """Sends to and receives from each peer, ``count`` times, or as a mapping says.

    By default all sends come first, as on a first stage; ``order`` may map peers to other orders,
    and with ``at_once`` each message of one kind is followed by one of the other.
    """
    builder = RankBuilder(number).step(0, 0, 1_000)
    for place, name in enumerate(kernels):
        builder.kernel(name, place * 100 // len(kernels), (place + 1) * 100 // len(kernels))
    now = 200
    for peer in peers:
        kinds = order[peer] if isinstance(order, dict) else order
        times = count if isinstance(count, int) else count[peer]
        all_of = [kind for _ in range(times) for kind in kinds]
        for kind in all_of if at_once else sorted(all_of, key=kinds.index):
            builder.comm(
                "ncclDevKernel_SendRecv", now, now + 5, kind=CollectiveKind[kind], peer=peer
            )
            now += 10
    return builder.rank()


FORWARD, BACKWARD = ("SEND", "RECV"), ("RECV", "SEND")


def test_a_chain_of_ranks_that_send_both_ways_is_a_pipeline():
    ranks = [
        messages(0, [2]),
        messages(2, [0, 1], order={0: BACKWARD, 1: FORWARD}),
        messages(1, [2], order=BACKWARD),
    ]
    (group,) = analysed(sorted(ranks, key=lambda rank: rank.rank)).groups
    assert (group.ranks, group.stages, group.num_micro_batches) == ((0, 2, 1), 3, 3)
    assert (group.source, group.confidence) == (SOURCE, Confidence.INFERRED)
    assert group.bubble_fraction == pytest.approx(0.9)
    assert group.warm_up_drain_ns is None


def test_a_last_rank_that_sends_to_the_first_less_often_holds_several_stages():
    counts = dict.fromkeys(((0, 1), (1, 2), (2, 3)), 4) | {(0, 3): 2}

    def of(rank):
        mine = {b if a == rank else a: n for (a, b), n in counts.items() if rank in (a, b)}
        order = {peer: FORWARD if peer > rank else BACKWARD for peer in mine}
        return messages(rank, sorted(mine), count=mine, order=order)

    (group,) = analysed([of(rank) for rank in range(4)]).groups
    assert (group.ranks, group.stages, group.virtual_stages) == ((0, 1, 2, 3), 8, 2)
    assert group.num_micro_batches == 2


def test_a_ring_is_no_pipeline():
    ranks = [messages(rank, [(rank - 1) % 4, (rank + 1) % 4]) for rank in range(4)]
    result = analysed(ranks)
    assert result.groups == ()
    assert result.unavailable


@pytest.mark.parametrize("count", [1, 3])
def test_two_ranks_that_send_and_receive_at_once_are_no_pipeline(count):
    """Context parallelism: each rank passes its keys and values on, and gets the other's."""
    ranks = [messages(rank, [1 - rank], count=count, at_once=True) for rank in range(2)]
    assert analysed(ranks).groups == ()


@pytest.mark.parametrize(("kernels", "number"), [(("gemm",), 0), (("gemm", "nll_loss"), 1)])
def test_ranks_that_take_turns_are_a_pipeline_only_if_their_work_differs(kernels, number):
    """A ring of blocking calls, where one rank receives first; a pipeline has one loss."""
    ranks = [
        messages(0, [1], order=FORWARD, at_once=True),
        messages(1, [0], order=BACKWARD, at_once=True, kernels=kernels),
    ]
    assert len(analysed(ranks).groups) == number


def test_stages_are_in_the_order_of_activations_and_not_of_rank_numbers():
    ranks = [messages(0, [1], order=BACKWARD), messages(1, [0], order=FORWARD)]
    (group,) = analysed(ranks).groups
    assert group.ranks == (1, 0)


def test_stages_that_messages_show_are_those_of_the_ranks_in_every_subject():
    """So a rank is compared with ranks of its stage, and not called late for its layers."""
    ranks = [
        messages(0, (1,), order=("RECV", "SEND"), kernels=("gemm", "loss")),
        messages(1, (0,), order=("SEND", "RECV")),
    ]
    run = make_run(ranks, steps=(0,))
    assert held_stages(measure(run).analyses, run) == {1: (0,), 0: (1,)}


def test_ranks_of_a_ring_hold_no_stages():
    ranks = [messages(0, (1,), at_once=True), messages(1, (0,), at_once=True)]
    run = make_run(ranks, steps=(0,))
    assert set(held_stages(measure(run).analyses, run).values()) == {()}


def test_links_that_carry_unequal_numbers_are_no_pipeline():
    ranks = [messages(0, [1]), messages(1, [0, 2], count={0: 3, 2: 5}), messages(2, [1], count=5)]
    assert analysed(ranks).groups == ()


def test_a_run_whose_analyses_are_missing_says_so():
    run = make_run([rank_of(0, 0)], steps=(0,))
    assert analyze_pipeline(run, RankAnalyses.of([])).unavailable
    assert analyze_pipeline(replace(run, ranks=()), RankAnalyses.of([])).unavailable
