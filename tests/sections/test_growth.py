"""What is done for a run grows in proportion to its ranks and steps, counted in calls and bytes.

Twice the ranks may cost twice as much, and no more: not four times, as where each rank is compared
with all others. Counts do not depend on the machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import distprof
from benchmarks.large_jobs import Job, run_of
from distprof.documents.saved import Report
from distprof.sections.whatif import trace_model

RANKS = [Job(num_ranks=ranks, num_steps=3, per_step=8) for ranks in (32, 64, 128)]
STEPS = [Job(num_ranks=24, num_steps=steps, per_step=8) for steps in (8, 16, 32)]


def calls_of(make: Callable[[], Any]) -> int:
    """Calls of functions, and of generators for their next value."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        make()
    finally:
        sys.setprofile(None)
    return calls


def peak_bytes_of(make: Callable[[], Any]) -> int:
    tracemalloc.start()
    make()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


LITTLE_MORE = {calls_of: 1.15, peak_bytes_of: 1.25}
"""Times twice: groups of twice the ranks make numbers longer, and memory is freed at any time."""


def whole(job: Job) -> Report:
    return distprof.analyze(run_of(job), executor="serial")


@pytest.mark.parametrize("count", [calls_of, peak_bytes_of])
@pytest.mark.parametrize("jobs", [RANKS, STEPS], ids=["ranks", "steps"])
def test_growth(
    jobs: list[Job], count: Callable[[Callable[[], Any]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second doubling adds at most twice what the first one added."""
    monkeypatch.setattr(trace_model, "_CELLS", 1)  # as many at once whatever the size
    whole(jobs[0])  # what is imported and cached is not of any size
    small, middle, large = (count(lambda job=job: whole(job)) for job in jobs)
    assert large - middle <= 2 * LITTLE_MORE[count] * (middle - small)


def test_the_truth_is_found() -> None:
    job = Job(num_ranks=64, num_steps=6)
    found = {one.ranks for one in whole(job).stragglers.sets}
    assert found == {(job.slow_rank,), tuple(job.slow_ranks)}
