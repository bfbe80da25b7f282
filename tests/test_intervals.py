"""Interval algebra: answers written out, then against a bitmap that cannot be wrong."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from distprof.intervals import (
    EMPTY,
    Intervals,
    clip,
    complement,
    covered,
    intersect,
    reach,
    subtract,
    total,
    union,
)

SIZE = 24  # times of the bitmap

TIMES = st.integers(0, SIZE)
ANY = st.lists(st.tuples(TIMES, TIMES), max_size=8).map(lambda pairs: Intervals.of(*pairs))
SETS = ANY.map(union)


def pairs(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def bitmap(intervals: Intervals) -> np.ndarray:
    """Which unit times are covered, one by one."""
    bits = np.zeros(SIZE, dtype=bool)
    for start, end in pairs(intervals):
        for time in range(start, end):
            bits[time] = True
    return bits


def is_set(intervals: Intervals) -> bool:
    flat = [time for pair in pairs(intervals) for time in pair]
    return all(a < b for a, b in itertools.pairwise(flat))


# Known answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_pairs", "expected"),
    [
        ([], []),
        ([(3, 5)], [(3, 5)]),
        ([(3, 3)], []),
        ([(5, 3)], []),
        ([(0, 2), (2, 4)], [(0, 4)]),
        ([(0, 2), (3, 4)], [(0, 2), (3, 4)]),
        ([(3, 4), (0, 2)], [(0, 2), (3, 4)]),
        ([(0, 10), (2, 3), (5, 6)], [(0, 10)]),
        ([(0, 5), (1, 9), (2, 3), (8, 11), (12, 13)], [(0, 11), (12, 13)]),
    ],
)
def test_union_known_answers(given_pairs, expected):
    assert pairs(union(Intervals.of(*given_pairs))) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([(0, 10)], [(2, 4), (6, 12)], [(2, 4), (6, 10)]),
        ([(0, 2), (4, 6)], [(2, 4)], []),
        ([(0, 2), (4, 6), (8, 10)], [(1, 9)], [(1, 2), (4, 6), (8, 9)]),
        ([], [(0, 1)], []),
    ],
)
def test_intersect_known_answers(a, b, expected):
    assert pairs(intersect(Intervals.of(*a), Intervals.of(*b))) == expected
    assert pairs(intersect(Intervals.of(*b), Intervals.of(*a))) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([(0, 10)], [(2, 4), (6, 12)], [(0, 2), (4, 6)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 4), (6, 9)], [(4, 6)], [(0, 4), (6, 9)]),
        ([(0, 4)], [], [(0, 4)]),
    ],
)
def test_subtract_known_answers(a, b, expected):
    assert pairs(subtract(Intervals.of(*a), Intervals.of(*b))) == expected


def test_complement_fills_the_frame():
    assert pairs(complement(Intervals.of((2, 3), (5, 9)), 0, 8)) == [(0, 2), (3, 5)]
    assert pairs(complement(EMPTY, 4, 6)) == [(4, 6)]
    assert pairs(complement(Intervals.of((0, 9)), 4, 6)) == []


def test_a_frame_of_no_length_holds_nothing():
    inside = Intervals.of((0, 10))
    assert clip(inside, 5, 5).size == 0
    assert clip(inside, 7, 5).size == 0
    assert complement(EMPTY, 5, 5).size == 0
    assert complement(inside, 7, 5).size == 0


def test_covered_counts_each_query_by_itself():
    held = Intervals.of((2, 4), (6, 10))
    queries = Intervals.of((0, 12), (3, 7), (4, 6), (9, 8), (0, 3), (9, 20))
    assert covered(queries, held).tolist() == [6, 2, 0, 0, 1, 1]


def test_reach_is_when_an_amount_has_been_covered():
    held = Intervals.of((2, 4), (6, 10))
    assert reach(held, np.array([0, 1, 2, 3, 6])).tolist() == [2, 3, 6, 7, 10]


def test_epoch_nanoseconds_keep_every_digit():
    """Times of 1.7e18 ns do not fit a float64: one ns must survive all functions."""
    base = 1_700_000_000_123_456_789
    a = union(Intervals.of((base, base + 3), (base + 5, base + 9)))
    b = union(Intervals.of((base + 1, base + 2), (base + 6, base + 7)))
    assert total(subtract(a, b)) == 5
    assert pairs(intersect(a, b)) == [(base + 1, base + 2), (base + 6, base + 7)]
    assert covered(Intervals.of((base + 2, base + 6)), a).tolist() == [2]


# Against the bitmap -------------------------------------------------------------------------------


@given(ANY)
def test_union_covers_what_its_input_covers(a):
    result = union(a)
    assert is_set(result)
    assert (bitmap(result) == bitmap(a)).all()
    assert total(result) == bitmap(a).sum()


@given(SETS)
def test_union_of_a_set_is_that_set(a):
    assert pairs(union(a)) == pairs(a)


@given(ANY)
def test_union_leaves_its_input_alone_unless_it_may_overwrite_it(a):
    before, expected = pairs(a), pairs(union(a))
    assert pairs(a) == before
    assert pairs(union(a, overwrite=True)) == expected


@given(ANY, st.randoms(use_true_random=False))
def test_union_does_not_depend_on_order(a, random):
    shuffled = pairs(a)
    random.shuffle(shuffled)
    assert pairs(union(Intervals.of(*shuffled))) == pairs(union(a))


@given(SETS, SETS)
def test_two_sets_combine_as_their_bitmaps_do(a, b):
    common, rest = intersect(a, b), subtract(a, b)
    assert is_set(common)
    assert is_set(rest)
    assert (bitmap(common) == (bitmap(a) & bitmap(b))).all()
    assert (bitmap(rest) == (bitmap(a) & ~bitmap(b))).all()
    assert total(common) + total(rest) == total(a)


@given(SETS, TIMES, TIMES)
@example(Intervals.of((0, 10)), 5, 5)
def test_clip_and_complement_divide_their_frame(a, low, high):
    frame = bitmap(Intervals.of((low, high)))
    inside, outside = clip(a, low, high), complement(a, low, high)
    assert is_set(inside)
    assert is_set(outside)
    assert (bitmap(inside) == (bitmap(a) & frame)).all()
    assert (bitmap(outside) == (~bitmap(a) & frame)).all()


@given(ANY, SETS)
def test_covered_is_the_bitmap_count(queries, held):
    expected = [int((bitmap(held) & bitmap(Intervals.of(query))).sum()) for query in pairs(queries)]
    assert covered(queries, held).tolist() == expected


@given(SETS.filter(lambda held: held.size > 0), st.data())
def test_reach_and_covered_undo_each_other(held, data):
    amount = data.draw(st.integers(0, total(held)))
    (when,) = reach(held, np.array([amount])).tolist()
    assert covered(Intervals.of((0, when)), held).tolist() == [amount]


@given(SETS, SETS, st.integers(-(10**18), 10**18))
def test_shifting_the_clock_changes_nothing(a, b, shift):
    moved_a = Intervals(a.start + shift, a.end + shift)
    moved_b = Intervals(b.start + shift, b.end + shift)
    moved = subtract(moved_a, moved_b)
    assert pairs(Intervals(moved.start - shift, moved.end - shift)) == pairs(subtract(a, b))
