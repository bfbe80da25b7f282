"""Breakdown: exclusive, exact, and per step by its part."""

import numpy as np
import pytest

from distprof.sections.context import RankAnalyses
from distprof.sections.time.measure import analyze_breakdown, step_times
from distprof.terms import StepSource
from tests.builders import RankBuilder
from tests.sections.measured import measured


def parts(step) -> tuple[int, ...]:
    return (
        step.span_ns,
        step.computation_ns,
        step.exposed_comm_ns,
        step.exposed_copy_ns,
        step.idle_ns,
    )


def test_computation_hides_communication_and_both_hide_copies():
    """K = [10, 40), C = [30, 60), X = [50, 80) in a window [0, 100)."""
    rank = RankBuilder().kernel("gemm", 10, 40).comm("nccl", 30, 60).copy("Memcpy HtoD", 50, 80)
    (step,) = measured(rank, windows=[(0, 100)]).steps
    assert parts(step) == (100, 30, 20, 20, 30)


def test_kernels_on_two_streams_count_once():
    rank = RankBuilder().kernel("a", 0, 60, stream=7).kernel("b", 20, 80, stream=8)
    (step,) = measured(rank, windows=[(0, 100)]).steps
    assert parts(step) == (100, 80, 0, 0, 20)


def test_a_kernel_across_a_step_boundary_counts_in_each_step_by_its_part():
    rank = RankBuilder().step(3, 0, 50).step(4, 50, 120).kernel("gemm", 40, 70)
    first, second = measured(rank).steps
    assert parts(first) == (50, 10, 0, 0, 40)
    assert parts(second) == (70, 20, 0, 0, 50)


def test_time_between_windows_is_not_analysed():
    rank = RankBuilder().step(3, 0, 50).step(4, 100, 150).kernel("gemm", 40, 110)
    assert [parts(step)[:2] for step in measured(rank).steps] == [(50, 10), (50, 10)]


def test_annotations_on_the_device_take_no_part():
    rank = RankBuilder().range("ProfilerStep#3", 0, 100).kernel("gemm", 10, 20)
    (step,) = measured(rank, windows=[(0, 100)]).steps
    assert parts(step) == (100, 10, 0, 0, 90)


def test_without_windows_given_the_capture_is_the_span_of_device_activity():
    """Communication belongs to the span; the annotation that is longer does not."""
    rank = RankBuilder().range("all", 0, 500).kernel("gemm", 100, 120).comm("nccl", 130, 140)
    (step,) = measured(rank).steps
    assert parts(step) == (40, 20, 10, 0, 10)


def test_a_rank_that_did_nothing_on_the_device_is_idle():
    (step,) = measured(RankBuilder(), windows=[(0, 100)]).steps
    assert parts(step) == (100, 0, 0, 0, 100)


def test_a_rank_without_activity_and_without_windows_has_no_steps():
    assert measured(RankBuilder()).steps == ()


def test_activities_of_no_length_count_nothing():
    rank = RankBuilder().kernel("marker", 10, 10).comm("nccl", 20, 20).copy("Memset", 30, 30)
    (step,) = measured(rank, windows=[(0, 100)]).steps
    assert parts(step) == (100, 0, 0, 0, 100)


def test_ranks_add_up_their_steps():
    rank = RankBuilder(5).step(3, 0, 50).step(4, 50, 120).kernel("gemm", 40, 70)
    result = analyze_breakdown(RankAnalyses.of([measured(rank)]))
    assert [parts(row) for row in result.ranks] == [(120, 30, 0, 0, 90)]
    assert [row.rank for row in result.ranks] == [5]


def test_windows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="in order and disjoint"):
        measured(RankBuilder(), windows=[(50, 100), (0, 60)])


# Step times ---------------------------------------------------------------------------------------


def test_a_step_lasts_as_long_as_on_the_median_rank():
    durations = np.array([[10, 20, 30, 40], [12, 18, 30, 44], [99, 20, 1, 45]], dtype=np.int64)
    result = step_times(durations, source=StepSource.DEVICE, note="")
    assert result.num_steps == 4
    assert result.median_ns == 25  # of 12, 20, 30, 44
    assert result.p95_ns == 41  # 30 + 0.85 * 14
    assert result.cv == pytest.approx(0.45086, abs=1e-5)  # sqrt(571 / 4) / 26.5


def test_ranks_whose_steps_end_in_turn_do_not_make_steps_longer():
    """Each is 100 ns late in another step and catches up in the next; the job goes at 1000 ns."""
    durations = np.array([[1100, 900, 1000], [1000, 1100, 900], [900, 1000, 1100]], dtype=np.int64)
    assert step_times(durations, source=StepSource.PROFILER_STEP, note="").median_ns == 1000


def test_one_step_has_no_variation():
    result = step_times(np.array([[10]]), source=StepSource.DEVICE, note="")
    assert (result.median_ns, result.cv) == (10, None)


def test_without_steps_nothing_is_said_about_step_times():
    result = step_times(np.empty((0, 0), np.int64), source=StepSource.CAPTURE, note="")
    assert (result.num_steps, result.median_ns, result.p95_ns, result.cv) == (0, None, None, None)
