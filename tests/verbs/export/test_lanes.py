"""Slices that overlap in part get lanes of their own; the others share one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.intervals import Intervals
from distprof.verbs.export import bracket_order, lanes_of


def lanes(*pairs):
    return lanes_of(Intervals.of(*pairs)).tolist()


def test_one_after_another_and_one_inside_the_other_share_a_lane():
    assert lanes((0, 10), (10, 20), (12, 15), (12, 12), (15, 20), (30, 40)) == [0] * 6


def test_a_partial_overlap_needs_a_second_lane():
    assert lanes((0, 10), (5, 15), (6, 8), (15, 20)) == [0, 1, 0, 0]


def test_the_same_span_twice_nests():
    assert lanes((5, 9), (5, 9), (9, 9), (9, 9)) == [0] * 4


def test_brackets_at_one_moment():
    """Close, then open; an empty slice opens and closes at once."""
    slices = Intervals.of((0, 10), (10, 20), (5, 10), (10, 15), (10, 10))
    place = bracket_order(slices)
    order = np.argsort(place).tolist()
    # opening brackets are 0 to 4, closing ones 5 to 9
    assert order == [0, 2, 7, 5, 1, 3, 4, 9, 8, 6]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])))
)
def test_brackets_of_every_lane_match(pairs):
    slices = Intervals.of(*pairs)
    of = lanes_of(slices)
    for lane in set(of.tolist()):
        mine = Intervals(slices.start[of == lane], slices.end[of == lane])
        place = bracket_order(mine)
        stack, last = [], -1
        for bracket in np.argsort(place).tolist():
            index, closes = bracket % mine.size, bracket >= mine.size
            time = int((mine.end if closes else mine.start)[index])
            assert time >= last
            last = time
            if closes:
                assert stack.pop() == index
            else:
                stack.append(index)
        assert stack == []


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda p: (p[0], p[0] + p[1])))
)
def test_a_second_lane_means_that_two_overlap_in_part(pairs):
    crossing = any(a < c < b < d for a, b in pairs for c, d in pairs)
    assert (max(lanes(*pairs), default=0) > 0) == crossing
