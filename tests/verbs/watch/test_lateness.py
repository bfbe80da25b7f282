"""The law of slowness: excess over peers, and how long it must last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distprof.join.gpu_waits import LEAST_PEERS, excess_of_peers
from distprof.verbs.watch import (
    OFF,
    ON,
    PAST,
    WINDOW,
    JobSpeed,
    Persistence,
    SlowRanks,
)

ONE_GROUP = np.zeros(64, dtype=np.int64)


def arrays(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def excess(own: NDArray[np.float64], groups: NDArray[np.int64] | None = None) -> list[float]:
    found, _ = excess_of_peers(own, ONE_GROUP[: len(own)] if groups is None else groups)
    return [float(value) for value in found]


def test_a_rank_is_compared_with_the_median_of_the_others() -> None:
    assert excess(arrays(100, 100, 110)) == pytest.approx([-5 / 105, -5 / 105, 0.10])
    assert excess(arrays(100, 110)) == pytest.approx([100 / 110 - 1, 0.10])
    assert excess(arrays(10, 20, 30, 70)) == pytest.approx([10 / 30 - 1, 20 / 30 - 1, 0.5, 2.5])


def test_a_rank_without_peers_or_times_is_unknown() -> None:
    assert np.isnan(excess(arrays(100))).all()
    assert np.isnan(excess(arrays(100, np.nan))).all()
    assert np.isnan(excess(arrays(0, 0))).all()
    found = excess(arrays(100, np.nan, 150))
    assert found[2] == pytest.approx(0.5)
    assert np.isnan(found[1])


def test_stages_of_a_pipeline_are_compared_apart() -> None:
    groups = np.array([0, 0, 1, 1])
    assert excess(arrays(10, 11, 100, 100), groups) == pytest.approx([10 / 11 - 1, 0.1, 0, 0])


@settings(max_examples=50)
@given(st.lists(st.floats(1, 1e10), min_size=2, max_size=30), st.randoms(use_true_random=False))
def test_medians_of_others_are_those_that_leaving_one_out_gives(values, random) -> None:
    own = arrays(*values)
    _, peers = excess_of_peers(own, np.zeros(len(own), dtype=np.int64))
    left_out = [np.median(np.delete(own, i)) for i in range(len(own))]
    assert peers == pytest.approx(np.array(left_out), rel=1e-12)
    order = list(range(len(own)))
    random.shuffle(order)
    shuffled, _ = excess_of_peers(own[order], np.zeros(len(own), dtype=np.int64))
    assert shuffled == pytest.approx(excess_of_peers(own, np.zeros(len(own), int))[0][order])


def observed(persistence: Persistence, is_above: bool, times: int) -> bool:
    for _ in range(times):
        persistence.observe(np.array([is_above]))
    return bool(persistence.is_on[0])


def test_what_lasts_is_on_and_stays_on_until_little_is_left() -> None:
    state = Persistence(1)
    assert not observed(state, True, ON - 1)
    assert not observed(state, False, WINDOW)
    assert not observed(state, True, ON - 1)
    assert observed(state, True, 1)
    assert observed(state, False, WINDOW - OFF - 1)
    assert not observed(state, False, 1)
    assert observed(state, True, ON)


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=200))
def test_counts_are_those_of_the_window(history: list[bool]) -> None:
    state = Persistence(1)
    for at, is_above in enumerate(history):
        state.observe(np.array([is_above]))
        assert state.counts[0] == sum(history[max(0, at + 1 - WINDOW) : at + 1])
    state.grow(3)
    assert state.counts[1:].tolist() == [0, 0]


def steps_until_told(own: NDArray[np.float64], level: float, rank: int, step: float) -> int | None:
    slow = SlowRanks(level, own.shape[1])
    for number, row in enumerate(own, 1):
        slow.observe(row, step, ONE_GROUP[: own.shape[1]])
        if slow.state.is_on[rank]:
            return number
    return None


@pytest.mark.parametrize(("late", "told"), [(1.10, ON), (1.08, ON), (1.07, None), (0.9, None)])
def test_a_rank_is_slow_above_three_quarters_of_the_level(late: float, told: int | None) -> None:
    own = np.full((100, 4), 80.0)
    own[:, 2] *= late
    assert steps_until_told(own, 0.10, 2, 100) == told


def test_what_slows_every_rank_alike_slows_none() -> None:
    own = np.full((200, 4), 80.0) * np.linspace(1, 5, 200)[:, None]
    own[::7] *= 10
    slow = SlowRanks(0.10, 4)
    for row in own:
        slow.observe(row, row.max() + 20, ONE_GROUP[:4])
        assert not slow.state.counts.any()


def test_a_late_rank_that_costs_the_step_nothing_is_left_alone() -> None:
    own = np.full((100, 4), 2.0)
    own[:, 2] = 2.5
    assert steps_until_told(own, 0.10, 2, 100) is None
    assert steps_until_told(own, 0.10, 2, 10) == ON


def test_ranks_that_always_differ_raise_the_limit_of_a_large_job() -> None:
    def limit(size: int) -> float:
        slow = SlowRanks(0.10, size)
        for _ in range(20 * WINDOW):
            slow.observe(100 * np.linspace(0.9, 1.1, size), 100, ONE_GROUP[:size])
        return float(slow.limits[0])

    assert limit(LEAST_PEERS - 1) == pytest.approx(0.075)
    assert limit(64) == pytest.approx(6 * 1.4826 * 0.05, rel=0.05)


def told_of(speed: JobSpeed, duration: int, times: int) -> bool:
    for _ in range(times):
        speed.observe(duration)
    return speed.state.is_on


def test_a_job_is_compared_with_its_own_past() -> None:
    speed = JobSpeed(0.20)
    assert not told_of(speed, 100, 10)
    assert speed.usual_ns is None
    assert not told_of(speed, 100, 200)
    assert speed.usual_ns == 100
    assert not told_of(speed, 114, 200)
    assert not told_of(speed, 130, ON - 1)
    assert told_of(speed, 130, 1)
    assert not told_of(speed, 100, WINDOW)


def test_a_job_that_stays_slow_becomes_the_new_usual() -> None:
    speed = JobSpeed(0.20)
    told_of(speed, 100, 2 * PAST)
    assert told_of(speed, 200, PAST // 4)
    assert not told_of(speed, 200, PAST)
    assert speed.usual_ns == 200
