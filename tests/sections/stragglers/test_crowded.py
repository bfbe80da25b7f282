"""Ranks that share busy CPUs: what may be chance, and what is proven."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distprof.sections.stragglers.contention import (
    QUEUED,
    Queue,
    _all_wait_for_cpus,
    _may_be_chance,
    _surely_longer,
)
from distprof.sections.stragglers.evidence import Cause, Evidence, Excess, Late
from distprof.terms import StragglerCause

_WAITS = Excess(QUEUED, 0.0, 2.0)


@pytest.mark.parametrize(("surely_slept_ns", "proven_ns"), [(0.1, 0.8), (-0.1, 0.0)])
def test_a_sleep_that_its_scatter_explains_is_not_proven(
    surely_slept_ns: float, proven_ns: float
) -> None:
    queue = Queue(_WAITS, _WAITS, 2.0, 0.0, slept_ns=0.8, surely_slept_ns=surely_slept_ns)
    assert queue.proven_sleep_ns == proven_ns


def slept(*late: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of rank 1 in each step; rank 0 sleeps for 1."""
    return np.array([[1] * len(late), late], dtype=np.int64)


@pytest.mark.parametrize(
    ("late", "is_sure"),
    [
        pytest.param((9, 8, 10, 9, 9), True, id="in each step"),
        pytest.param((1, 1, 27, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), False, id="in one of 13 steps"),
        # measured: a healthy rank of four on two cores that others keep busy, ms
        pytest.param((22, 1, 16, 6, 41), False, id="whenever others run"),
        pytest.param((7,), True, id="one step"),
        pytest.param((1,), False, id="one step, no longer than its peer"),
    ],
)
def test_a_sleep_of_its_own_is_alike_in_all_late_steps(
    late: tuple[int, ...], is_sure: bool
) -> None:
    assert (_surely_longer(slept(*late), 1, [0]) > 0) is is_sure


def test_what_is_sure_of_a_sleep_is_three_standard_errors_below_the_mean() -> None:
    # 4 and 8 longer than its peer: mean 6, standard deviation √8, standard error 2
    assert _surely_longer(slept(5, 9), 1, [0]) == pytest.approx(6 - 3 * 2)


@pytest.mark.parametrize("is_counted", [False, True])
def test_longer_kernels_of_a_thread_that_runs_no_longer_may_be_chance(is_counted: bool) -> None:
    queue = Queue(_WAITS, _WAITS, 4.0, 0.0, slept_ns=12.0, is_once=True)
    found = Cause(StragglerCause.MORE_WORK, confidence=0.95, is_counted=is_counted)
    assert _may_be_chance(found, queue) is not is_counted


@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize("is_once", [False, True])
def test_one_long_sleep_on_busy_cpus_may_be_chance(is_once: bool, is_crowded: bool) -> None:
    # measured: a healthy rank of four on two busy CPUs slept for 35 ms, and waited for 7 ms
    queue = Queue(_WAITS, _WAITS, 7.0, 0.0, slept_ns=35.0, is_once=is_once)
    found = Cause(StragglerCause.LATE_HOST)
    assert _may_be_chance(found, queue, is_crowded=is_crowded) is (is_once and is_crowded)


@pytest.mark.parametrize("cause", [StragglerCause.MORE_WORK, StragglerCause.LATE_HOST])
def test_a_thread_that_runs_longer_is_not_late_by_chance(cause: StragglerCause) -> None:
    queue = Queue(_WAITS, _WAITS, 4.0, 9.0, slept_ns=1.0)
    assert not _may_be_chance(Cause(cause, confidence=0.7), queue)


@pytest.mark.parametrize(
    ("waits_ns", "crowded", "is_taken"), [(0, (), False), (0, (0, 1), True), (5, (), True)]
)
def test_unexplained_lateness_on_busy_cpus_is_put_down_to_them(
    waits_ns: int, crowded: tuple[int, ...], is_taken: bool
) -> None:
    analysis: Any = SimpleNamespace(is_cpu=True, steps=[SimpleNamespace(step=3)])
    pauses: Any = SimpleNamespace(run_queue_ns={3: waits_ns})
    own_time: Any = SimpleNamespace(ranks=(0, 1), peers=((0, 1), (0, 1)), num_steps=1)
    known = Evidence(
        analyses={0: analysis, 1: analysis},
        mean_step=100.0,
        own_time=own_time,
        pauses={0: pauses, 1: pauses},
        crowded=crowded,
    )
    found = _all_wait_for_cpus(Late(1, [0], 8.0), known)
    assert (found is not None) is is_taken
    assert found is None or found.cause is StragglerCause.CPU_TAKEN
