"""The picture of the step: packing, folding, clocks, waits, repairs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

import distprof
from distprof.documents.saved import Report
from distprof.intervals import Intervals
from distprof.run.run import Run
from distprof.sections.measure_run import measure_rank
from distprof.sections.picture import (
    COMPUTATION,
    COPY,
    IDLE,
    MESSAGE_WAIT,
    TRANSFER,
    WAIT,
    DrawnRank,
    StepPicture,
    decode_numbers,
    encode_numbers,
    lane_pieces,
    packed_split,
    pieces_of,
)
from distprof.sections.picture.drawing import packed_lane
from distprof.sections.picture.measure import fewer, steps_to_draw
from distprof.terms import CollectiveKind
from tests.builders import RankBuilder
from tests.sections.joined import joined_run, without_ranks
from tests.sections.measured import context_of
from tests.simulator import Compute, SimulatedJob, SlowDevice, shapes


@given(st.lists(st.integers(0, 2**40), max_size=40))
def test_numbers_survive_packing(numbers: list[int]) -> None:
    assert decode_numbers(encode_numbers(np.array(numbers, np.int64))) == numbers


PIECES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 1_000)), min_size=1, max_size=200)


@given(PIECES, st.integers(1, 60))
def test_fewer_pieces_keep_the_time_of_each_class(pieces: list[tuple[int, int]], most: int) -> None:
    kind, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    end = np.cumsum(length)
    fewer_kinds, fewer_ends = fewer(kind, end, most)
    assert len(fewer_kinds) <= max(most, 1) or len(fewer_kinds) == len(kind) <= most
    assert fewer_ends[-1] == end[-1]
    widths = np.diff(fewer_ends, prepend=0)
    assert (widths >= 0).all()
    cell = -(-int(end[-1]) // most) + 1
    for one in range(5):
        before, after = length[kind == one].sum(), widths[fewer_kinds == one].sum()
        assert abs(int(before) - int(after)) <= 5 * cell


@given(PIECES, st.integers(0, 500), st.integers(1, 7))
def test_a_split_is_drawn_to_within_a_unit(
    pieces: list[tuple[int, int]], start: int, unit: int
) -> None:
    kind, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    end = start + np.cumsum(length)
    drawn = pieces_of(packed_split(kind, end, start, unit))
    assert all(b == c for (_, b, _), (c, _, _) in pairwise(drawn))
    assert abs((drawn[-1][1] if drawn else start / unit) * unit - end[-1]) <= unit
    for low, high, one in drawn:
        middle = (low + high) * unit / 2
        place = min(int(np.searchsorted(end, middle)), len(kind) - 1)
        near = {int(kind[i]) for i in (place - 1, place, place + 1) if 0 <= i < len(kind)}
        assert one in near or high - low <= 1


def test_overlapping_pieces_of_a_lane_begin_where_the_one_before_ends() -> None:
    spans = Intervals.of((50, 60), (0, 30), (20, 40))
    drawn = lane_pieces(packed_lane(spans, np.array([2, 0, 1]), 1))
    assert drawn == [(0, 30, 0), (30, 40, 1), (50, 60, 2)]


def test_the_time_of_a_rank_is_split_into_classes() -> None:
    rank = RankBuilder(0)
    rank.step(0, 0, 100)
    rank.step(1, 100, 300)
    rank.kernel("gemm", 110, 150)
    rank.comm("ncclDevKernel_AllReduce", 140, 190, kind=CollectiveKind.ALL_REDUCE)
    rank.comm("ncclDevKernel_SendRecv", 200, 220, kind=CollectiveKind.RECV, stream=21)
    rank.copy("Memcpy HtoD", 215, 240)
    context = context_of(rank, wait_end=[170, 205], axis=["dp", "pp"])
    (step,) = measure_rank(rank.tables(), replace(context, drawn=(1,), drawn_pieces=99)).drawn
    ends = zip(step.kind.tolist(), step.end_ns.tolist(), strict=True)
    assert list(ends) == [
        (IDLE, 10),
        (COMPUTATION, 50),
        (WAIT, 70),
        (TRANSFER, 90),
        (IDLE, 100),
        (MESSAGE_WAIT, 105),
        (TRANSFER + 1, 120),
        (COPY, 140),
        (IDLE, 200),
    ]
    assert [lane.title for lane in step.lanes][:1] == ["stream 7"]


def test_the_median_step_is_drawn_and_then_the_longest() -> None:
    lengths = (10, 40, 20, 30, 90)
    ends = np.cumsum(lengths)
    windows = Intervals(ends - lengths, ends)
    assert steps_to_draw({0: windows, 1: windows}, None) == [3, 4]
    assert steps_to_draw({0: windows}, (1, 3)) == [2, 4]
    assert steps_to_draw({0: windows}, (1, 5)) == [3, 4], "the median of all, not of these"
    assert steps_to_draw({}, None) == [0]


def test_the_step_is_chosen_by_the_length_that_is_shown() -> None:
    """The mean over ranks: the median rank would choose the first step, whose mean is longest."""
    windows = {
        rank: Intervals(np.zeros(3, np.int64), np.array(lengths))
        for rank, lengths in enumerate([(20, 10, 30), (20, 10, 30), (200, 100, 30)])
    }
    assert steps_to_draw(windows, None) == [1, 0]


# Whole runs ---------------------------------------------------------------------------------------


def slow_run(offsets: tuple[int, ...] = ()) -> Run:
    job = SimulatedJob(
        num_nodes=3,
        ranks_per_node=8,
        num_steps=4,
        faults=(SlowDevice(rank=17, factor=1.5),),
        clock_offset_ns=offsets,
    )
    return joined_run(job.run())


@pytest.fixture(scope="module")
def run() -> Run:
    return slow_run()


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return distprof.analyze(run)


def test_many_ranks_are_folded_and_the_slow_one_has_a_row(report: Report) -> None:
    groups = report.picture.groups
    assert len(groups) <= 16
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(24))
    assert [group.ranks for group in groups if 17 in group.ranks] == [(17,)]
    assert all(group.shown in group.ranks for group in groups)


def test_the_rank_that_others_wait_for_is_at_the_end_of_the_arrows(report: Report) -> None:
    waits = report.picture.steps[0].waits
    assert waits
    assert {wait.late_rank for wait in waits} == {17}
    assert all(wait.start < wait.end for wait in waits)
    assert [wait.end for wait in waits] == sorted(wait.end for wait in waits)


def test_a_drawn_step_adds_up_to_what_was_measured(report: Report) -> None:
    step = report.picture.steps[0]
    (measured,) = [one for one in report.breakdown.steps if (one.rank, one.step) == (17, step.step)]
    (drawn,) = [rank for rank in step.ranks if rank.rank == 17]
    times = dict.fromkeys(range(8), 0)
    for start, end, kind in pieces_of(drawn.split):
        times[kind] += (end - start) * step.unit_ns
    assert times[COMPUTATION] == pytest.approx(measured.computation_ns, rel=0.01)
    assert times[IDLE] == pytest.approx(measured.idle_ns, rel=0.01, abs=10_000)
    assert sum(times.values()) == pytest.approx(measured.span_ns, rel=0.001)


def test_the_repaired_step_is_as_long_as_the_plan_says(report: Report) -> None:
    step = report.picture.steps[0]
    assert [one.done for one in step.repaired] == [one.done for one in report.plan.repairs]
    first = step.repaired[0]
    assert first.mean_ns == pytest.approx(report.plan.repairs[0].step_ns, rel=0.03)
    assert first.mean_ns < 0.9 * step.mean_ns
    assert {rank.rank for rank in first.ranks} == {one.shown for one in report.picture.groups}
    for rank in first.ranks:
        pieces = pieces_of(rank.split)
        drawn = (pieces[-1][1] - pieces[0][0]) * step.unit_ns
        assert drawn == pytest.approx(first.mean_ns, rel=0.05)


def simulated(shape: str) -> SimulatedJob:
    """A job of 8 ranks of which rank 2 is slow."""
    dice = random.Random(3)
    job = (
        shapes.pipeline(4, 2, dice, num_steps=5)
        if shape == "pipeline"
        else getattr(shapes, shape)(shapes.Shape(num_nodes=2, per_node=4), dice, num_steps=5)
    )
    return dataclasses.replace(job, faults=(SlowDevice(rank=2, factor=1.4),), capture_skip={})


def begins_and_ends(ranks: Sequence[DrawnRank]) -> NDArray[np.int64]:
    """Units, shape ``(2, len(ranks))``."""
    pieces = [pieces_of(rank.split) for rank in ranks]
    return np.array([[of[0][0] for of in pieces], [of[-1][1] for of in pieces]])


def all_wait(ranks: Sequence[DrawnRank]) -> float:
    """Share of the step in which every rank waits."""
    pieces = [np.array(pieces_of(rank.split)) for rank in ranks]
    times = np.linspace(0, max(of[-1, 1] for of in pieces), 4_000)
    waits = [
        np.isin(of[np.searchsorted(of[:, 1], times).clip(max=len(of) - 1), 2], (WAIT, MESSAGE_WAIT))
        for of in pieces
    ]
    return float(np.all(waits, axis=0).mean())


@pytest.mark.parametrize("is_whole", [True, False], ids=["all-ranks", "without-rank-2"])
@pytest.mark.parametrize(
    "shape",
    ["data_parallel", "tensor_parallel", "sharded", "hybrid", "mixture", "pipeline"],
)
def test_repaired_ranks_end_together_where_they_did_before(shape: str, is_whole: bool) -> None:
    recording = simulated(shape).run()
    if not is_whole:
        recording = without_ranks(recording, (0, 1, 3, 4, 5, 6, 7))
    report = distprof.analyze(joined_run(recording))
    (step, *_) = report.picture.steps
    length = step.mean_ns / step.unit_ns
    apart = np.ptp(begins_and_ends(step.ranks), axis=1)
    if is_whole and shape != "pipeline":
        assert step.repaired
    for one in step.repaired:
        drawn = begins_and_ends(one.ranks)
        assert one.mean_ns <= 1.01 * step.mean_ns
        assert (np.ptp(drawn, axis=1) <= apart + 0.01 * length).all()
        assert drawn.min() >= 0
        assert drawn.max() * step.unit_ns <= one.span_ns + step.unit_ns
        assert (drawn[1] - drawn[0]).mean() * step.unit_ns == pytest.approx(one.mean_ns, rel=1e-3)
        if is_whole:
            assert all_wait(one.ranks) < 0.005, "somebody works or moves data meanwhile"
        planned = report.plan.repairs[one.number - 1].step_ns
        assert one.mean_ns == pytest.approx(planned, rel=0.02), "the plan counts all steps"


def test_a_wait_for_a_rank_that_is_not_recorded_is_no_transfer_to_hide() -> None:
    """Rank 6 alone, or 0, 1 and 3 together, waited for rank 2, so hiding only some is no repair."""
    job = dataclasses.replace(simulated("hybrid"), compute_noise=0.0, host_noise_ns=0)
    recording = job.run()
    partial = without_ranks(recording, (0, 1, 3, 4, 5, 6, 7))
    plan = distprof.analyze(joined_run(partial)).plan
    assert all(plan.step_ns - one.step_ns < 0.1 * plan.step_ns for one in plan.repairs)
    whole = distprof.analyze(joined_run(recording)).plan
    assert whole.repairs[-1].step_ns < 0.7 * whole.step_ns


def test_clocks_of_hosts_change_nothing(report: Report) -> None:
    moved = slow_run((0, 1_000_000_007, -30_000_000))
    assert distprof.analyze(moved).picture == report.picture


def test_ranks_of_clocks_that_cannot_be_compared_begin_at_0() -> None:
    run = slow_run((0, 10**12, 0))
    unknown = replace(run.clock, offset_ns=np.zeros(3), component=np.arange(3, dtype=np.int32))
    picture = distprof.analyze(replace(run, clock=unknown)).picture
    assert not picture.is_one_clock
    assert "begins at 0" in picture.notes[0]
    assert {pieces_of(rank.split)[0][0] for rank in picture.steps[0].ranks} == {0}


def test_nothing_measured_is_no_picture() -> None:
    assert StepPicture().steps == ()
    assert StepPicture(axes=("dp",)).classes[TRANSFER] == "exposed transfer, dp"


def test_a_single_rank_has_a_step_without_transfers() -> None:
    job = SimulatedJob(num_nodes=1, ranks_per_node=1, num_steps=4, program=(Compute(ns=10**6),))
    picture = distprof.analyze(joined_run(job.run())).picture
    (rank,) = picture.steps[0].ranks
    assert {kind for _, _, kind in pieces_of(rank.split)} == {COMPUTATION, IDLE}
    assert picture.steps[0].waits == ()


def test_a_whole_capture_is_drawn_and_repaired(run: Run) -> None:
    report = distprof.analyze(run, window="capture")
    (step,) = report.picture.steps
    assert (step.kind, step.step) == ("capture", None)
    assert [one.done for one in step.repaired] == [one.done for one in report.plan.repairs]
    assert step.repaired[0].mean_ns < step.mean_ns


def test_an_empty_window_is_not_drawn() -> None:
    rank = RankBuilder(0)
    rank.step(0, 0, 0)
    rank.step(1, 0, 100)
    rank.kernel("gemm", 10, 50)
    context = replace(context_of(rank), drawn=(0, 1, 7), drawn_pieces=99)
    (step,) = measure_rank(rank.tables(), context).drawn
    assert step.window == 1
