"""Clocks by exchanged stamps: in place of nothing, better than little, never worse than before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.join.clocks import StampedClock, clock_of_stamps, with_stamps
from distprof.run.records import CLOCK_STAMPS
from distprof.run.run import ClockAlignment
from distprof.schema import ABSENT
from tests.builders import table_of

MS = 1_000_000
NOW = 1_750_000_000_000_000_000


def stamps(*exchanges):
    """Own clock ahead of the server's by ``offset``, ``there`` and ``back`` on the way."""
    rows = [
        {
            "t_sent_ns": at + offset,
            "t_server_ns": at + there,
            "t_received_ns": at + there + back + offset,
        }
        for at, offset, there, back in exchanges
    ]
    return table_of(CLOCK_STAMPS, rows)


def alignment(offsets, residuals, components=(0, 0)):
    return ClockAlignment(
        domains=((0,), (1,)),
        names=("a", "b"),
        offset_ns=np.array(offsets, np.float64),
        drift_ratio=np.zeros(2),
        reference_ns=NOW,
        residual_ns=np.array(residuals, np.int64),
        component=np.array(components, np.int32),
    )


def test_equal_ways_give_the_offset_and_half_the_delay_its_error():
    told = clock_of_stamps(stamps((NOW, 5 * MS, 100, 100)), NOW)
    assert told == StampedClock(offset_ns=5 * MS, error_ns=100)


def test_slow_exchanges_do_not_count():
    told = clock_of_stamps(
        stamps((NOW, 5 * MS, 100, 100), (NOW + MS, 5 * MS, 9 * MS, 100), (NOW, 5 * MS, 120, 100)),
        NOW,
    )
    assert abs(told.offset_ns - 5 * MS) <= 10
    assert told.error_ns <= 100


def test_exchanges_near_the_capture_count_where_the_clock_drifts():
    hour = 3_600_000 * MS
    told = clock_of_stamps(stamps((NOW - hour, MS, 100, 100), (NOW, 9 * MS, 100, 100)), NOW)
    assert told.offset_ns == 9 * MS


def test_nothing_is_told_without_exchanges():
    assert clock_of_stamps(stamps(), NOW) is None


@given(st.integers(-(10**15), 10**15), st.integers(1, MS), st.integers(1, MS))
def test_the_offset_is_right_within_its_error(offset, there, back):
    told = clock_of_stamps(stamps((NOW, offset, there, back)), NOW + offset)
    assert abs(told.offset_ns - offset) <= told.error_ns + 1


def test_clocks_that_no_collective_connects_are_connected():
    clock = alignment([0, 0], [ABSENT, ABSENT], (0, 1))
    better = with_stamps(clock, {1: StampedClock(offset_ns=7 * MS, error_ns=100)})
    assert better.component.tolist() == [0, 0]
    assert better.offset_ns.tolist() == [0, 7 * MS]
    assert better.residual_between(0, 1) == 100
    assert "only from timestamps" in better.notes[0]


def test_stamps_replace_collectives_that_are_less_sure():
    clock = alignment([0, 6 * MS], [2 * MS, 2 * MS])
    better = with_stamps(clock, {1: StampedClock(offset_ns=7 * MS, error_ns=100)})
    assert better.offset_ns.tolist() == [0, 7 * MS]
    assert better.residual_between(0, 1) == 100
    assert "confirm" in better.notes[0]


def test_surer_collectives_stay_and_are_confirmed():
    clock = alignment([0, 6 * MS], [1_000, 1_000])
    better = with_stamps(clock, {1: StampedClock(offset_ns=7 * MS, error_ns=2 * MS)})
    assert better.offset_ns.tolist() == [0, 6 * MS]
    assert better.residual_between(0, 1) == 1_000
    assert "confirm" in better.notes[0]


def test_where_both_contradict_each_other_collectives_stay_and_it_is_said():
    clock = alignment([0, 60 * MS], [1_000, 1_000])
    better = with_stamps(clock, {1: StampedClock(offset_ns=7 * MS, error_ns=100)})
    assert better.offset_ns.tolist() == [0, 60 * MS]
    assert "distprof uses the collectives" in better.notes[0]


@pytest.mark.parametrize("stamped", [{}, {5: StampedClock(offset_ns=1, error_ns=1)}])
def test_stamps_of_no_other_clock_change_nothing(stamped):
    clock = alignment([0, 3], [5, 5])
    assert with_stamps(clock, stamped) is clock
