import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.steps import find_steps
from distprof.terms import StepSource
from tests.builders import RankBuilder


def steps_of(built, *, first=0, last=1000):
    tables = built.tables()
    return find_steps(tables.activity, tables.host, first_ns=first, last_ns=last)


def windows(steps):
    table = steps.table
    return list(
        zip(
            table["step"].tolist(),
            table["start_ns"].tolist(),
            table["end_ns"].tolist(),
            table["complete"].tolist(),
            strict=True,
        )
    )


def test_host_windows_serve_where_the_device_keeps_up():
    built = RankBuilder()
    built.annotation("ProfilerStep#4", 0, 1000).annotation("ProfilerStep#5", 1000, 2000)
    built.kernel("a", 10, 990, launched=(5, 8)).kernel("b", 1010, 2005, launched=(1005, 1008))
    steps = steps_of(built)
    assert steps.source is StepSource.PROFILER_STEP
    assert windows(steps) == [(4, 0, 1000, True), (5, 1000, 2000, True)]


def test_device_windows_serve_where_the_device_runs_behind():
    """Step 4's kernel runs until 1500, half a step after the host left step 4."""
    built = RankBuilder()
    built.annotation("ProfilerStep#4", 0, 1000).annotation("ProfilerStep#5", 1000, 2000)
    built.kernel("a", 100, 600, launched=(5, 8)).kernel("a2", 600, 1500, launched=(10, 12))
    built.kernel("b", 1600, 2400, launched=(1005, 1008)).kernel(
        "b2", 1700, 2600, launched=(1500, 1508)
    )
    steps = steps_of(built)
    assert steps.source is StepSource.DEVICE
    assert windows(steps) == [(4, 0, 1500, True), (5, 1500, 2600, True)]
    assert "60 %" in steps.note


def test_a_stall_after_a_device_that_runs_behind():
    """Step 0's kernel runs 200 into step 1; step 1 is over at 1,500 and then the host saves."""
    built = RankBuilder()
    built.annotation("ProfilerStep#0", 0, 1000).annotation("ProfilerStep#1", 1000, 2500)
    built.kernel("a", 100, 1200, launched=(20, 22)).kernel("b", 1200, 1500, launched=(1020, 1022))
    steps = steps_of(built, last=2500)
    assert steps.source is StepSource.DEVICE
    assert windows(steps) == [(0, 0, 1200, True), (1, 1200, 2500, True)]


def test_a_stall_before_the_first_launch_is_in_its_own_step():
    """The GPU ends step 0 at 1,200; the CPU begins step 1 at 1,000 and launches at 1,800."""
    built = RankBuilder()
    built.annotation("ProfilerStep#0", 0, 1000).annotation("ProfilerStep#1", 1000, 2000)
    built.kernel("a", 100, 1200, launched=(20, 22)).kernel("b", 1820, 2500, launched=(1800, 1810))
    assert windows(steps_of(built)) == [(0, 0, 1200, True), (1, 1200, 2500, True)]


def test_a_copy_ends_a_step_as_a_kernel_does_and_an_annotation_does_not():
    built = RankBuilder()
    built.annotation("ProfilerStep#0", 0, 100).annotation("ProfilerStep#1", 100, 200)
    built.kernel("a", 50, 140, launched=(5, 8)).copy("Memcpy DtoH", 145, 155, launched=(9, 10))
    built.range("ProfilerStep#0", 10, 280).kernel("b", 170, 300, launched=(103, 104))
    assert windows(steps_of(built)) == [(0, 0, 155, True), (1, 155, 300, True)]


def test_a_side_stream_bounds_no_step():
    """The copy for step 5 runs at once, while the main stream is still half a step behind.

    Another one, of what step 4 has made, ends when step 5 has begun.
    """
    built = RankBuilder()
    built.annotation("ProfilerStep#4", 0, 1000).annotation("ProfilerStep#5", 1000, 2000)
    built.copy("Memcpy HtoD", 2, 5, stream=20, launched=(1, 2))
    built.kernel("a", 500, 1500, launched=(5, 8))
    built.copy("Memcpy HtoD", 1002, 1005, stream=20, launched=(1001, 1002))
    built.copy("Memcpy DtoH", 1500, 1700, stream=21, launched=(900, 905))
    built.kernel("b", 1500, 2500, launched=(1005, 1008))
    assert windows(steps_of(built)) == [(4, 0, 1500, True), (5, 1500, 2500, True)]


def test_a_step_that_launched_nothing_keeps_the_hosts_start():
    built = RankBuilder()
    for number in range(3):
        built.annotation(f"ProfilerStep#{number}", 100 * number, 100 * number + 100)
    built.kernel("a", 50, 190, launched=(5, 8)).kernel("c", 250, 350, launched=(205, 208))
    assert windows(steps_of(built)) == [
        (0, 0, 100, True),
        (1, 100, 200, True),
        (2, 200, 350, True),
    ]


def test_a_last_step_whose_launches_never_ran_is_incomplete():
    built = RankBuilder()
    for number in range(3):
        begin = 100 * number
        built.annotation(f"ProfilerStep#{number}", begin, begin + 100)
        for i in range(10):
            at = begin + 5 * i
            if number == 2 and i >= 5:
                built.call("cudaLaunchKernel", at, at + 1, correlation=900 + i)
            else:
                built.kernel("k", at + 60, at + 64, launched=(at, at + 1))
    steps = steps_of(built)
    assert steps.source is StepSource.DEVICE
    assert [complete for *_, complete in windows(steps)] == [True, True, False]


def test_a_step_of_which_nothing_ran_takes_no_time_of_the_one_before():
    """The CPU is two steps ahead; the capture ends before the first kernel of step 2 runs."""
    built = RankBuilder()
    for number in range(3):
        begin = 100 * number
        built.annotation(f"ProfilerStep#{number}", begin, begin + 100)
        if number == 2:
            built.call("cudaLaunchKernel", begin + 5, begin + 8, correlation=900)
            continue
        ran = 200 + 300 * number
        built.kernel("k", ran, ran + 290, launched=(begin + 5, begin + 8))
    assert windows(steps_of(built)) == [
        (0, 0, 490, True),
        (1, 490, 790, True),
        (2, 790, 790, False),
    ]


def test_a_last_step_without_the_others_optimizer_step_is_incomplete():
    built = RankBuilder()
    for number in range(3):
        built.annotation(f"ProfilerStep#{number}", 100 * number, 100 * number + 100)
        if number < 2:
            built.annotation("Optimizer.step#SGD.step", 100 * number + 80, 100 * number + 90)
    assert [complete for *_, complete in windows(steps_of(built))] == [True, True, False]


def test_optimizer_steps_bound_steps_where_nothing_else_does():
    built = RankBuilder()
    for end in (100, 300, 500):
        built.annotation("Optimizer.step#AdamW.step", end - 20, end)
    steps = steps_of(built, first=10, last=620)
    assert steps.source is StepSource.OPTIMIZER
    assert windows(steps) == [
        (0, 10, 100, False),
        (1, 100, 300, True),
        (2, 300, 500, True),
        (3, 500, 620, False),
    ]


def test_of_two_optimizers_the_rarer_bounds_steps():
    """A discriminator stepped twice for each step of the generator."""
    built = RankBuilder()
    for end in (100, 300, 500):
        built.annotation("Optimizer.step#G.step", end - 20, end)
        built.annotation("Optimizer.step#D.step", end - 90, end - 80)
        built.annotation("Optimizer.step#D.step", end - 60, end - 50)
    assert steps_of(built).table["end_ns"].tolist()[:3] == [100, 300, 500]


def test_one_optimizer_step_bounds_nothing():
    built = RankBuilder().annotation("Optimizer.step#SGD.step", 80, 90).kernel("k", 20, 70)
    assert steps_of(built).source is StepSource.CAPTURE


def test_without_marks_the_devices_span_is_one_window():
    built = RankBuilder().operator("aten::mm", 0, 900).kernel("k", 200, 300).kernel("l", 250, 700)
    steps = steps_of(built)
    assert steps.source is StepSource.CAPTURE
    assert windows(steps) == [(0, 200, 700, True)]


def test_without_marks_or_device_the_capture_is_one_window():
    assert windows(steps_of(RankBuilder(), first=3, last=9)) == [(0, 3, 9, True)]


def test_ranges_on_the_device_serve_where_no_launch_is_recorded():
    built = RankBuilder()
    built.range("ProfilerStep#7", 100, 180).range("ProfilerStep#8", 200, 290)
    built.range("ProfilerStep#7", 90, 150, stream=20).kernel("k", 100, 120)
    steps = steps_of(built)
    assert steps.source is StepSource.DEVICE
    assert windows(steps) == [(7, 90, 200, True), (8, 200, 290, True)]


def test_steps_of_several_threads_are_one():
    built = RankBuilder()
    built.annotation("ProfilerStep#1", 0, 50).annotation("ProfilerStep#1", 10, 70, thread="1/2")
    built.annotation("ProfilerStep#2", 60, 120)
    assert windows(steps_of(built)) == [(1, 0, 60, True), (2, 60, 120, True)]


@pytest.mark.parametrize(
    "name", ["ProfilerStep#", "ProfilerStep#x", "ProfilerStep#99999999999999999999"]
)
def test_a_mark_without_a_number_is_no_mark(name):
    assert steps_of(RankBuilder().annotation(name, 0, 10)).source is StepSource.CAPTURE


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.integers(0, 400), st.integers(0, 300), st.integers(0, 2)),
        max_size=30,
    )
)
def test_windows_are_in_order_and_never_overlap(kernels):
    built = RankBuilder()
    for number in range(4):
        built.annotation(f"ProfilerStep#{number}", 250 * number, 250 * number + 250)
    for launch, lag, length, stream in kernels:
        built.kernel(
            "k", launch + lag, launch + lag + length, launched=(launch, launch + 1), stream=stream
        )
    table = steps_of(built).table
    start, end = table["start_ns"], table["end_ns"]
    assert (end >= start).all()
    assert (start[1:] >= end[:-1]).all()
    assert table["step"].tolist() == [0, 1, 2, 3]
    assert start.dtype == end.dtype == np.int64


@pytest.mark.parametrize(("begin", "end", "empty"), [(95, 1005, 0), (20, 1000, 1), (0, 1300, 2)])
def test_nothing_is_recorded_at_the_ends_of_the_only_mark(begin, end, empty):
    built = RankBuilder().annotation("ProfilerStep#4", begin, end)
    built.kernel("a", 110, 1000, launched=(100, 105))
    assert steps_of(built).num_empty == empty
