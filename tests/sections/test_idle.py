"""Idle time by cause. Times in µs, ``us`` makes ns of them; the device is idle in [100, 300).

One kernel ends at 100 µs, the next starts at 300 µs; what the host did meanwhile decides.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.run.tables import among
from distprof.sections.context import RankAnalyses
from distprof.sections.idle.gaps import _ended_with
from distprof.sections.idle.measure import analyze_idle
from distprof.terms import IdleCause
from tests.builders import RankBuilder
from tests.sections.measured import measured, sync_calls

OTHER_THREAD = "100/200"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def us(*times: float) -> tuple[int, int]:
    start, end = (int(time * 1000) for time in times)
    return start, end


def rank_with_gap(launch: tuple[float, float] | None, **more) -> RankBuilder:
    """Kernel [0, 100), gap, kernel [300, 400) that the host launched in ``launch``."""
    rank = RankBuilder().kernel("first", *us(0, 100), launched=us(-20, -15))
    launched = None if launch is None else us(*launch)
    return rank.kernel("second", *us(300, 400), launched=launched, **more)


def causes(rank: RankBuilder, windows=((0, 400),)) -> dict[str, float]:
    """Idle time by cause in µs, without zeros."""
    idle = measured(rank, windows=[us(*window) for window in windows]).idle
    assert idle is not None
    found = {cause: getattr(idle, f"{cause}_ns") / 1000 for cause in IdleCause}
    assert sum(found.values()) == idle.idle_ns / 1000
    return {str(cause): value for cause, value in found.items() if value}


# Host ---------------------------------------------------------------------------------------------


def test_a_late_launch_is_the_hosts():
    assert causes(rank_with_gap((290, 295))) == {"host": 200}


def test_a_launch_call_that_lasts_is_the_hosts():
    """First use of a kernel: the call loads the module while the device waits."""
    assert causes(rank_with_gap((50, 298))) == {"host": 198, "unknown": 2}


def test_work_held_back_long_after_a_late_launch_is_not_the_hosts():
    """Launched at 150 µs, in effect 50 µs later at most; then the device held it for 100 µs."""
    assert causes(rank_with_gap((150, 155))) == {"host": 100, "unknown": 100}


def test_work_launched_in_time_explains_nothing_about_the_host():
    assert causes(rank_with_gap((20, 25))) == {"unknown": 200}


def test_a_launch_just_before_the_gap_is_the_hosts_for_its_typical_latency():
    """Launches made while the device was idle took effect after 20, 6 and 6 µs."""
    rank = rank_with_gap((98, 99)).kernel("third", *us(450, 460), launched=us(444, 446))
    rank.kernel("fourth", *us(500, 510), launched=us(494, 496))
    assert causes(rank) == {"host": 4, "unknown": 196}


# Synchronising calls ------------------------------------------------------------------------------


def test_a_call_that_drained_the_queue_is_blamed_for_the_gap_after_it():
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(-10, 101))
    assert causes(rank) == {"host": 89, "sync": 111}


def test_a_call_that_blocked_longer_than_the_gap_takes_all_of_it():
    rank = rank_with_gap((290, 295)).kernel("zero", *us(-500, 0), launched=us(-600, -590))
    rank.sync("cudaDeviceSynchronize", *us(-300, 102))
    assert causes(rank) == {"sync": 200}


def test_a_call_that_returned_at_once_is_hardly_blamed():
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(200, 201))
    assert causes(rank) == {"host": 199, "sync": 1}


def test_a_call_answers_for_the_next_gaps_too_until_its_time_is_used_up():
    """It blocked for 150 µs: 100 in the first gap, 50 of the 80 in the second, the rest is host."""
    rank = RankBuilder().kernel("a", *us(0, 100), launched=us(-60, -55))
    rank.sync("cudaStreamSynchronize", *us(-49, 101))
    rank.kernel("b", *us(200, 210), launched=us(190, 195))
    rank.kernel("c", *us(290, 300), launched=us(280, 285))
    assert causes(rank, windows=[(0, 300)]) == {"sync": 150, "host": 30}


def test_a_call_answers_no_more_once_the_host_has_caught_up():
    """``c`` was launched 195 µs before it ran: the host is ahead again by more than 150 µs."""
    rank = RankBuilder().kernel("a", *us(0, 100), launched=us(-60, -55))
    rank.sync("cudaStreamSynchronize", *us(-49, 101))
    rank.kernel("b", *us(140, 400), launched=us(130, 135))
    rank.kernel("c", *us(400, 410), launched=us(205, 210))
    rank.kernel("d", *us(450, 460), launched=us(440, 445))
    assert causes(rank, windows=[(0, 460)]) == {"sync": 40, "host": 40}


def test_what_two_calls_cost_adds_up():
    """Each blocked for 100 µs. The first cost 40 in its gap; later gaps use up what is left."""
    rank = RankBuilder().kernel("a", *us(0, 100), launched=us(-60, -55))
    rank.sync("cudaDeviceSynchronize", *us(1, 101))
    rank.kernel("b", *us(140, 250), launched=us(130, 135))
    rank.sync("cudaDeviceSynchronize", *us(151, 251))
    rank.kernel("c", *us(280, 290), launched=us(270, 275))
    rank.kernel("d", *us(450, 460), launched=us(440, 445))
    assert causes(rank, windows=[(0, 460)]) == {"sync": 200, "host": 30}


def test_a_call_that_began_before_the_window_is_one_call():
    rank = RankBuilder().sync("cudaStreamSynchronize", *us(-40, 20))
    rank.kernel("a", *us(60, 70), launched=us(30, 35))
    (call,) = sync_calls(measured(rank, windows=[us(0, 70)]))
    assert (call.count, call.blocked_ns) == (1, 20_000)


def test_the_blame_for_later_gaps_goes_to_the_call_that_drained_the_queue():
    rank = RankBuilder().kernel("a", *us(0, 100), launched=us(-60, -55))
    rank.sync("cudaStreamSynchronize", *us(-49, 101))
    rank.kernel("b", *us(200, 210), launched=us(190, 195))
    rank.sync("cudaEventSynchronize", *us(220, 221))
    rank.kernel("c", *us(240, 300), launched=us(230, 235))
    calls = sync_calls(measured(rank, windows=[us(0, 300)]))
    assert {call.name: call.idle_ns for call in calls} == {
        "cudaStreamSynchronize": 130_000,
        "cudaEventSynchronize": 0,
    }


def test_several_calls_add_up():
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(60, 101))
    rank.sync("cudaEventSynchronize", *us(150, 160))
    assert causes(rank) == {"host": 149, "sync": 51}


def test_a_call_on_another_thread_is_not_blamed():
    rank = rank_with_gap((290, 295)).sync(
        "cudaStreamSynchronize", *us(-10, 101), thread=OTHER_THREAD
    )
    assert causes(rank) == {"host": 200}


def test_a_call_that_ended_long_before_the_gap_is_not_blamed():
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(0, 80))
    assert causes(rank) == {"host": 200}


@pytest.mark.parametrize("name", ["hipDeviceSynchronize", "cudaMemcpy", "cuCtxSynchronize"])
def test_blocking_calls_have_many_names(name):
    assert causes(rank_with_gap((290, 295)).sync(name, *us(50, 102)))["sync"] == 52


def test_an_asynchronous_copy_that_waited_for_its_end_is_a_synchronising_call():
    """A copy to pageable memory: the call of 80 µs returns after the copy on the device."""
    rank = rank_with_gap((290, 295))
    rank.copy("Memcpy DtoH", *us(100, 110), launched=us(30, 112))
    assert causes(rank) == {"host": 108, "sync": 82}
    analysis = measured(rank, windows=[us(0, 400)])
    assert [(call.name, call.count) for call in sync_calls(analysis)] == [("cudaMemcpyAsync", 1)]


def test_an_asynchronous_copy_that_returned_first_is_none():
    rank = rank_with_gap((290, 295))
    rank.copy("Memcpy HtoD", *us(100, 110), launched=us(30, 90))
    assert causes(rank) == {"host": 190}
    assert sync_calls(measured(rank, windows=[us(0, 400)])) == ()


def test_synchronising_calls_are_counted_inside_the_windows():
    rank = rank_with_gap((290, 295))
    rank.sync("cudaStreamSynchronize", *us(50, 101)).sync("cudaStreamSynchronize", *us(310, 320))
    rank.sync("cudaEventSynchronize", *us(120, 130)).sync("cudaDeviceSynchronize", *us(500, 600))
    calls = sync_calls(measured(rank, windows=[us(0, 400)]))
    assert {call.name: (call.count, call.blocked_ns, call.idle_ns) for call in calls} == {
        "cudaStreamSynchronize": (2, 61_000, 61_000),  # the longer of two takes the gap's blame
        "cudaEventSynchronize": (1, 10_000, 0),
    }


def test_nested_calls_count_once():
    """A runtime call and the driver call inside it block the thread once."""
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(50, 101))
    rank.call("cuStreamSynchronize", *us(51, 100), category="driver")
    assert causes(rank)["sync"] == 51


# Input --------------------------------------------------------------------------------------------


def test_data_loading_on_the_launching_thread_is_input():
    rank = rank_with_gap((290, 295)).annotation(LOADER, *us(110, 250))
    assert causes(rank) == {"input": 140, "host": 60}


def test_data_loading_before_the_gap_is_hidden():
    assert causes(rank_with_gap((290, 295)).annotation(LOADER, *us(10, 85))) == {"host": 200}


@pytest.mark.parametrize("end", [92, 100, 150])
def test_data_loading_that_ends_in_the_gap_or_as_it_opens_counts_as_a_whole(end):
    """Without it the launch would come that much earlier. Clocks agree to 10 µs."""
    rank = rank_with_gap((290, 295)).annotation(LOADER, *us(20, end))
    assert causes(rank) == {"input": end - 20, "host": 220 - end}


def test_data_loading_in_the_background_is_not_input():
    rank = rank_with_gap((290, 295)).annotation(LOADER, *us(110, 250), thread=OTHER_THREAD)
    assert causes(rank) == {"host": 200}


def test_data_loading_goes_before_a_synchronising_call():
    rank = rank_with_gap((290, 295)).sync("cudaStreamSynchronize", *us(-200, 101))
    rank.annotation("distprof:input", *us(110, 250))
    assert causes(rank) == {"input": 140, "sync": 60}


@pytest.mark.parametrize(
    ("name", "is_input"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#MapperIterDataPipe", True),
        ("_MultiProcessingDataLoaderIter.__next__", True),
        ("distprof:input step=3", True),
        ("distprof:inputs_of_others", False),
        ("DataLoader", False),
        ("aten::mm", False),
    ],
)
def test_names_of_data_loading(name, is_input):
    rank = rank_with_gap((290, 295)).annotation(name, *us(110, 250))
    assert ("input" in causes(rank)) is is_input


# Communication and unknown ------------------------------------------------------------------------


def test_work_queued_behind_communication_of_another_stream_waited_for_it():
    rank = (
        RankBuilder()
        .comm("nccl", *us(0, 100), launched=us(-20, -15))
        .kernel("gemm", *us(103, 200), launched=us(-10, -5))
    )
    assert causes(rank, windows=[(0, 200)]) == {"comm_wait": 3}


def test_communication_queued_behind_work_of_another_stream_is_a_dependency_too():
    rank = (
        RankBuilder()
        .kernel("gemm", *us(0, 100), launched=us(-20, -15))
        .comm("nccl", *us(103, 200), launched=us(-10, -5))
    )
    assert causes(rank, windows=[(0, 200)]) == {"comm_wait": 3}


def test_the_pause_between_kernels_of_one_stream_is_unknown():
    rank = (
        RankBuilder()
        .comm("multimem_all_reduce", *us(0, 100), stream=7, launched=us(-20, -15))
        .kernel("gemm", *us(101, 200), stream=7, launched=us(-10, -5))
    )
    assert causes(rank, windows=[(0, 200)]) == {"unknown": 1}


def test_a_gap_before_an_activity_without_launch_record_is_unknown():
    assert causes(rank_with_gap(None)) == {"unknown": 200}


def test_a_gap_at_the_end_of_the_capture_is_unknown():
    assert causes(rank_with_gap((290, 295)), windows=[(350, 450)]) == {"unknown": 50}


def test_a_gap_at_the_end_of_the_capture_is_due_to_what_the_cpu_did_in_it():
    rank = rank_with_gap((290, 295)).annotation("save_checkpoint", *us(500, 5_000))
    found = causes(rank, windows=[(0, 5_000)])
    assert found == {"host": 195, "pause": 4_605}  # nothing is launched after 295


def test_two_calls_with_one_correlation_are_one_launch():
    """A driver call inside the runtime call carries its id: the earlier start is the launch."""
    rank = rank_with_gap((150, 298))
    correlation = rank.activities[-1]["correlation"]
    rank.call("cuLaunchKernel", *us(280, 290), category="driver", correlation=correlation)
    assert causes(rank) == {"host": 198, "unknown": 2}


def test_correlation_zero_joins_nothing():
    """Some profilers write 0 where they know no id."""
    rank = rank_with_gap(None)
    rank.activities[-1]["correlation"] = 0
    rank.call("cudaLaunchKernel", *us(290, 295), correlation=0)
    assert causes(rank) == {"unknown": 200}


def test_on_a_cpu_only_trace_waiting_for_a_collective_is_named():
    rank = RankBuilder().kernel("aten::mm", *us(0, 100), stream=0)
    rank.kernel("aten::add", *us(300, 400), stream=0)
    rank.operator("_c10d_functional::wait_tensor", *us(120, 200)).annotation(LOADER, *us(210, 250))
    assert causes(rank) == {"comm_wait": 80, "input": 40, "unknown": 80}


def test_windows_divide_a_gap_by_its_parts():
    rank = rank_with_gap((290, 295)).annotation(LOADER, *us(110, 250))
    analysis = measured(rank, windows=[us(0, 150), us(150, 400)])
    assert analysis.idle_ns[IdleCause.INPUT].tolist() == [40_000, 100_000]
    assert analysis.idle_ns[IdleCause.HOST].tolist() == [10_000, 50_000]


# Figures beside the causes ------------------------------------------------------------------------


def test_late_launches_are_those_made_while_the_device_was_idle():
    """First (before any work), second and third; not the fourth; nothing known of the fifth."""
    rank = rank_with_gap((290, 295)).kernel("third", *us(400, 410), launched=us(296, 299))
    rank.kernel("fourth", *us(410, 430), launched=us(310, 312)).kernel("fifth", *us(430, 500))
    idle = measured(rank, windows=[us(0, 500)]).idle
    assert idle.num_kernels == 5
    assert idle.late_launch_ratio == 0.75
    assert idle.median_kernel_ns == 70_000


def test_a_graph_launch_is_one_launch_and_gaps_inside_it_are_told():
    """Kernels [0, 10), [40, 50), [60, 70) of one graph; what ran between may not be recorded."""
    rank = RankBuilder().kernel("a", *us(0, 10), launched=us(-9, -5))
    graph = rank.activities[-1]["correlation"]
    rank.kernel("b", *us(40, 50)).kernel("c", *us(60, 70))
    for row in rank.activities[1:]:
        row["correlation"] = graph
    rank.kernel("d", *us(70, 90), launched=us(20, 25))
    analysis = measured(rank, windows=[us(0, 90)])
    idle = analysis.idle
    assert (idle.unknown_ns, idle.within_launch_ns) == (40_000, 40_000)
    assert idle.late_launch_ratio == 1.0  # two launches, both while the device was idle
    assert "CUDA graphs" in analyze_idle(RankAnalyses.of([analysis])).unavailable[0]


@pytest.mark.parametrize(("call", "within_ns"), [("cudaGraphLaunch", 50_000), ("cudaX", 0)])
def test_idle_before_the_first_recorded_kernel_of_a_graph_is_told(call, within_ns):
    """The graph was launched in time; the device rests [10, 60) until the first kernel known."""
    rank = RankBuilder().kernel("a", *us(0, 10), launched=us(-9, -5))
    rank.kernel("b", *us(60, 70), launched=us(-4, -2))
    rank.host[-1]["name"] = call
    idle = measured(rank, windows=[us(0, 70)]).idle
    assert (idle.unknown_ns, idle.within_launch_ns) == (50_000, within_ns)


def test_without_host_rows_no_cause_is_given():
    rank = RankBuilder(3).kernel("gemm", 0, 10).kernel("gemm", 20, 30)
    analysis = measured(rank)
    assert analysis.idle is None
    assert analysis.waterfall.idle_unknown_ns == 10
    result = analyze_idle(RankAnalyses.of([analysis]))
    assert result.ranks == ()
    assert "rank 3" in result.unavailable[0]


def test_synchronising_calls_are_means_over_ranks_and_steps():
    first = RankBuilder(0).kernel("a", *us(0, 400), launched=us(-9, -8))
    first.sync("cudaStreamSynchronize", *us(10, 30)).sync("cudaStreamSynchronize", *us(50, 70))
    second = RankBuilder(1).kernel("a", *us(0, 400), launched=us(-9, -8))
    analyses = [measured(r, windows=[us(0, 200), us(200, 400)]) for r in (first, second)]
    (call,) = analyze_idle(RankAnalyses.of(analyses, num_windows=2)).sync_calls
    assert (call.ranks, call.count_per_step, call.cpu_ns_per_step) == ((0,), 0.5, 10_000)


# What ended when ----------------------------------------------------------------------------------

MOMENTS = st.sets(st.integers(0, 12)).map(sorted)
RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(-1, 2)), max_size=9)


@given(RANGES, MOMENTS, st.integers(-1, 2))
def test_what_ended_at_a_moment_is_what_a_look_at_each_activity_says(ranges, moments, wanted):
    rank = RankBuilder()
    for start, length, stream in ranges:
        rank.kernel("kernel", start, start + length, stream=stream)
    activity = rank.tables().activity
    values = np.full(len(moments), wanted, np.int64)
    found = _ended_with(activity, activity["stream"], values, np.array(moments, np.int64))
    assert found.tolist() == [
        any(start + length == moment and length and stream == wanted
            for start, length, stream in ranges)
        for moment in moments
    ]  # fmt: skip


@given(MOMENTS, MOMENTS)
def test_times_among_others(times, others):
    found = among(np.array(times, np.int64), np.array(others, np.int64))
    assert found.tolist() == [time in others for time in times]


def test_launches_that_only_zero_gradients_are_counted():
    """Three of five kernels are fills that the optimizer's zero_grad launches."""
    rank = (
        RankBuilder()
        .step(0, 0, 1_000_000)
        .annotation("Optimizer.zero_grad#SGD.zero_grad", *us(100, 200))
    )
    for index in range(3):
        at = 300 + 50 * index
        rank.kernel("fill", *us(at, at + 2), launched=us(110 + 20 * index, 115 + 20 * index))
    rank.kernel("gemm", *us(500, 600), launched=us(210, 215))
    rank.kernel("gemm", *us(700, 800), launched=us(220, 225))
    idle = measured(rank).idle
    assert (idle.num_launches, idle.num_zeroing) == (5, 3)
