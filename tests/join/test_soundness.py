"""Which broken invariants are damage, and which are what the program does."""

import pytest
from msgspec.structs import replace

from distprof.join.soundness.invariants import broken
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
