"""Which broken invariants are damage, and which are what the program does."""

import pytest
from msgspec.structs import replace

from distprof.join.invariants import broken
from distprof.join.lacking import lacking_rows
from distprof.run.run import Count
from tests.builders import RankBuilder

KEY = "empty-step-ends"


def with_count(number: int, count: Count):
    rank = RankBuilder(number).rank()
    return replace(rank, quality=replace(rank.quality, counts={KEY: count}))


@pytest.mark.parametrize(
    ("empty", "steps", "named"),
    [
        ([0, 1, 0], 1, [(1,)]),
        ([0, 0, 0], 1, []),
        ([1, 1, 1], 1, []),
        ([1], 1, []),
        ([1], 2, [(0,)]),
        ([1, 1, 1], 2, [(0, 1, 2)]),
    ],
)
def test_steps_without_events_at_their_ends(empty, steps, named):
    """If all ranks begin their only step like this, the program does; else events are missing."""
    ranks = [with_count(at, Count(count=count, of=steps)) for at, count in enumerate(empty)]
    assert [gap.ranks for gap in broken(ranks)] == named


def counted(*kernels: list[int], names: dict[int, set[int]] | None = None):
    """Ranks of GPUs with these computation kernels in steps 0, 1, 2, …"""
    for number, of_steps in enumerate(kernels):
        rank = RankBuilder(number).rank()
        quality = replace(
            rank.quality,
            kernels=dict(enumerate(of_steps)),
            num_ranges=sum(of_steps),
            num_launches=sum(of_steps),
            paces=dict.fromkeys((names or {}).get(number, {1, 2}), (1, 1)),
        )
        yield replace(rank, quality=quality)


def facts(ranks, named=()):
    return [gap.fact for gap in lacking_rows(list(ranks), named)]


def test_kernels_of_a_rank_that_are_missing_in_a_step():
    usual = [100, 100, 100, 100]
    assert facts(counted(usual, [100, 60, 100, 100], usual)) == [
        "kernels of rank 1 missing in step 1"
    ]
    assert facts(counted(usual, usual, usual)) == []
    assert facts(counted(usual, [100, 60, 100, 100], usual), {1}) == []


def test_a_step_with_fewer_kernels_on_all_ranks_is_another_step():
    assert facts(counted(*[[100, 60, 100, 100]] * 3)) == []
    assert facts(counted([100, 60, 100, 100], [100, 90, 100, 100], [100, 100, 100, 100])) == []


def test_a_stage_with_fewer_layers_is_no_damage_and_a_rank_without_most_kernels_is():
    usual, few = [100, 100], [40, 40]
    assert facts(counted(few, usual, usual)) == []
    (fact,) = facts(counted([10, 10], usual, usual))
    assert fact == "rank 0 has 10 kernels per step, others at least 100"


def test_two_ranks_do_not_show_which_of_them_is_usual():
    assert facts(counted([10, 10], [100, 100])) == []


def test_kernels_whose_names_no_other_rank_has():
    usual = [100, 100]
    (fact,) = facts(counted(usual, usual, usual, names={2: {7, 8}}))
    assert fact == "kernels of rank 2 have other names than all others"
    assert facts(counted(usual, usual, usual, names={0: {1}, 1: {2}, 2: {3}})) == []


@pytest.mark.parametrize(
    ("launches", "ranges", "named"),
    [(100, 50, True), (100, 0, True), (100, 90, False), (60, 60, False), (200, 100, False)],
)
def test_operators_that_one_rank_lacks(launches, ranges, named):
    """Fewer layers have fewer launches, too; more kernels per operator are more work."""
    ranks = [*counted([100], [100], [100])]
    quality = replace(ranks[1].quality, num_launches=launches, num_ranges=ranges)
    ranks[1] = replace(ranks[1], quality=quality)
    assert facts(ranks) == (["operators of rank 1 missing"] if named else [])
