"""Launch calls that return late because the queue is full, or for other reasons."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.api import analyze
from distprof.intervals import Intervals
from distprof.run.tables import join_launches
from distprof.sections.idle.gaps import waits_for_room
from tests.builders import RankBuilder, make_run
from tests.sections.joined import join_by_seq

US = 1_000
CALL, KERNEL, ROOM = 5 * US, 100 * US, 1_000
"""A launch takes 5 µs, a kernel 100 µs, and the queue holds a thousand."""


def running_ahead(kernels: int = 3_000, *, room: int = ROOM) -> RankBuilder:
    """The CPU launches as fast as it can: with 1,000 pending it waits for a kernel to start."""
    built, begun, cpu = RankBuilder(), [], 0
    for number in range(kernels):
        called = cpu
        if number >= room:
            cpu = max(cpu, begun[number - room])
        cpu += CALL
        start = max(cpu, begun[-1] + KERNEL if begun else 0)
        begun.append(start)
        built.kernel("gemm", start, start + KERNEL, launched=(called, cpu))
    return built


def waits_of(built: RankBuilder) -> Intervals:
    tables = built.tables()
    return waits_for_room(
        tables.activity, join_launches(tables.activity["correlation"], tables.host)
    )


def test_calls_that_wait_for_a_kernel_to_start_are_waits_for_room():
    """The queue is full after 1,050 launches; then each call lasts as long as a kernel."""
    waits = waits_of(running_ahead())

    assert 1_940 <= len(waits.start) <= 1_950
    assert np.median(waits.end - waits.start) == KERNEL


def test_a_cpu_that_is_not_far_ahead_waits_for_something_else():
    """With room for a hundred launches the queue is not what CUDA's is."""
    assert len(waits_of(running_ahead(room=100)).start) == 0


def test_a_long_call_while_the_queue_is_short_is_no_wait_for_room():
    built = running_ahead(900)
    built.kernel("late", 190_000 * US, 190_100 * US, launched=(160_000 * US, 189_900 * US))

    assert 189_900 * US not in waits_of(built).end


def test_activities_without_a_launch_record_were_launched_before():
    """A capture that starts when the queue is full: the first kernels have no launch record."""
    whole = running_ahead()
    late = 1_500 * KERNEL
    rows = [row for row in whole.host if row["start_ns"] >= late]
    kept = {row["correlation"] for row in rows}
    cut = RankBuilder()
    cut.host, cut.activities = rows, [a for a in whole.activities if a["end_ns"] > late]
    assert len({a["correlation"] for a in cut.activities} - kept) >= ROOM - 60

    waits = waits_of(cut)

    assert len(waits.start) == len(rows)


MS = 1_000 * US
STEP_KERNELS, STEPS = 100, 40


def training(rank: int) -> RankBuilder:
    """Steps of 1 ms of kernels and a 9 ms all-reduce that nothing overlaps.

    The CPU needs 0.5 ms for a step. It waits for the GPU in step 4, as a program that prints its
    loss does, and then runs ten steps ahead: until the queue is full.
    """
    built, begun, cpu, gpu = RankBuilder(rank, world_size=2), [], 0, 0
    for step in range(STEPS):
        first = gpu
        for number in range(STEP_KERNELS + 1):
            called = cpu
            if len(begun) >= ROOM:
                cpu = max(cpu, begun[-ROOM])
            cpu += CALL
            begun.append(max(cpu, gpu))
            if number < STEP_KERNELS:
                gpu = begun[-1] + 10 * US
                built.kernel("gemm", begun[-1], gpu, launched=(called, cpu))
            else:
                gpu = begun[-1] + 9 * MS
                built.comm(
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                    begun[-1], gpu, ranks=(0, 1), seq=step, size=1_000_000, launched=(called, cpu),
                )  # fmt: skip
        if step == 4:
            built.sync("cudaStreamSynchronize", cpu, gpu)
            cpu = gpu
        built.step(step, first, gpu)
    return built


def test_transfers_that_cost_nothing_leave_the_computation() -> None:
    """A step would take the GPU's 1 ms: a launch that waited for room is none of the CPU's pace."""
    ranks = [training(rank).rank() for rank in range(2)]
    matches, groups = join_by_seq(ranks)
    result = analyze(make_run(ranks, matches=matches, groups=groups, steps=range(STEPS))).whatif
    (free,) = [one for one in result.without if one.what == "exposed transfer"]

    assert result.replayed_ns == pytest.approx(10 * MS, rel=0.02)
    assert free.step_ns == pytest.approx(1 * MS, rel=0.1)
