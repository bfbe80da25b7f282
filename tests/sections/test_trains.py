"""Reductions one after another while nothing else runs, with their answers written out."""

from __future__ import annotations

import pytest

from distprof.rules.engine import run_rules
from distprof.sections.collectives import CollectivesResult, CollectiveTrain
from distprof.sections.collectives.rows import collective_trains
from distprof.terms import CollectiveKind
from tests.builders import RankBuilder
from tests.rules.samples import MS, US, changed, collective_class, collectives, healthy
from tests.sections.measured import measured

NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def job(number: int, *, computing: bool = False, gap: int = 5, between: int = 0) -> RankBuilder:
    """Backward to 1 ms, then ``number`` all-reduces of 20 µs; times in µs.

    Args:
        number: All-reduces.
        computing: Whether a kernel runs during each.
        gap: Time between two of them.
        between: Duration of a kernel in each gap.
    """
    rank = RankBuilder(0, world_size=2).step(0, 0, 1_000_000 * US)
    rank.kernel("backward", 0, 1_000 * US)
    at = 1_000 * US
    for index in range(number):
        rank.comm(NAME, at, at + 20 * US, kind=CollectiveKind.ALL_REDUCE, seq=index, stream=20)
        if computing:
            rank.kernel("gemm", at, at + 20 * US)
        at += 20 * US
        if between:
            rank.kernel("copy", at + US, at + (1 + between) * US)
        at += gap * US
    rank.kernel("adam", at + 500 * US, at + 600 * US)
    return rank


def trains(rank):
    return collective_trains([(0, measured(rank).trains)], 1)


def test_a_train_after_backward_is_counted_and_timed_without_sizes():
    (train,) = trains(job(200))
    assert (train.kind, train.num_per_step) == ("all_reduce", 200)
    assert (train.busy_ns_per_step, train.gap_ns_per_step) == (200 * 20 * US, 199 * 5 * US)
    assert train.duration_ns_median == 20 * US


def test_a_few_buckets_are_no_train():
    assert trains(job(8)) == ()


def test_reductions_that_computation_hides_are_no_train():
    assert trains(job(200, computing=True)) == ()


def test_reductions_with_long_pauses_are_no_train():
    assert trains(job(200, gap=300)) == ()


@pytest.mark.parametrize(("gap", "copy"), [(12, 8), (60, 4), (150, 10)])
def test_reductions_that_alternate_with_small_copies_launched_late_are_one_train(gap, copy):
    (train,) = trains(job(404, gap=gap, between=copy))
    assert train.num_per_step == pytest.approx(404, abs=1)
    assert train.gap_ns_per_step == 403 * gap * US


@pytest.mark.parametrize("gap", [30, 150])
def test_reductions_between_the_kernels_of_layers_are_no_train(gap):
    assert trains(job(200, gap=gap, between=25)) == ()


def finding(code, *rows, **parts):
    unsized = collective_class(bytes=None, count=1_000)
    results = changed(
        {**healthy(exposed_transfer=4, **parts), CollectivesResult: collectives(unsized)},
        CollectivesResult,
        trains=rows,
    )
    return {one.code: one for one in run_rules(results.values(), debug=True).findings}.get(code)


def train(number, busy_ms, gap_ms):
    return CollectiveTrain(
        kind="all_reduce",
        group=collective_class().group,
        ranks=(0, 1),
        num_per_step=number,
        busy_ns_per_step=round(busy_ms * MS),
        gap_ns_per_step=round(gap_ms * MS),
        duration_ns_median=10 * US,
    )


def test_unbucketed_gradients_are_priced_by_kernels_and_gaps():
    found = finding("COM105", train(300, 3, 1))
    assert "300 all_reduces per step and rank of" in found.message
    assert found.cost_ns_per_step == 4 * MS - 10 * US
    assert "buckets" in found.fix
    assert "torch.compile" not in found.fix


def test_the_gaps_of_a_train_are_no_matter_for_torch_compile():
    assert finding("HST101", train(300, 3, 0.01), idle_host=6) is not None
    assert finding("HST101", train(300, 3, 6), idle_host=6) is None


@pytest.mark.parametrize("number", [5, 20])
def test_few_reductions_are_left_alone(number):
    assert finding("COM105", train(number, 3, 1)) is None
