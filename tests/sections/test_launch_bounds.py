"""How long a CPU that launches slowly would hold its GPU back, window by window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.sections.context import LaunchBounds
from distprof.sections.idle.launch_bounds import held_by_launches


def bounds(rows):
    """Rows of (call, segment, excess)."""
    after, segment, excess = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return LaunchBounds(after=after, segment=segment, delay_ns=0 * after, excess_ns=excess)


def test_what_follows_from_one_call_grows_from_window_to_window():
    """Windows open at segments 0, 10 and 20; the call in segment 2 is the only one."""
    rows = [(2, 5, 30), (2, 8, 20), (2, 12, 50), (2, 25, 90)]
    assert held_by_launches(bounds(rows), np.array([0, 10, 20])).tolist() == [30, 20, 40]


def test_calls_add_up():
    rows = [(2, 5, 30), (2, 12, 70), (11, 15, 25), (11, 22, 60)]
    assert held_by_launches(bounds(rows), np.array([0, 10, 20])).tolist() == [30, 65, 35]


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(6, 29), st.integers(1, 1000)), min_size=1, max_size=30
)


@given(ROWS)
def test_windows_add_up_to_the_most_of_each_call(rows):
    held = held_by_launches(bounds(rows), np.array([0, 10, 20]))
    most = {}
    for call, _, excess in rows:
        most[call] = max(most.get(call, 0), excess)
    assert held.sum() == sum(most.values())
    assert (held >= 0).all()
