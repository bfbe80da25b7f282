"""The main line of a rank: where it is cut, and what its segments were spent on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from distprof.schema import ABSENT
from distprof.sections.context import MainLine, Own
from distprof.terms import ActivityKind, CollectiveKind
from tests.builders import RankBuilder
from tests.sections.measured import measured


def line_of(rank: RankBuilder, **more) -> MainLine:
    line = measured(rank, **more).line
    assert line is not None
    return line


def spent(line: MainLine, *kinds: Own) -> list[list[int]]:
    """Per segment what it was spent on, of these kinds."""
    return line.own_ns[:, list(kinds)].tolist()


def test_a_collective_that_is_waited_for_cuts_own_time_in_two():
    rank = RankBuilder().step(0, 0, 100)
    rank.kernel("gemm", 0, 40).comm("nccl", 40, 60).kernel("gemm", 60, 90)
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION, Own.OTHER) == [[40, 0], [30, 10], [0, 0]]
    assert (line.issue.tolist(), line.resume.tolist()) == ([0], [1])
    assert line.exposed.tolist() == [True]
    assert (line.opens.tolist(), line.closes.tolist()) == ([0], [2])


def test_a_hidden_collective_cuts_where_it_starts_and_holds_up_the_next_step_only():
    rank = RankBuilder().step(0, 0, 100).step(1, 100, 150)
    rank.kernel("gemm", 0, 90).comm("nccl", 20, 50).kernel("gemm", 100, 150)
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION, Own.OTHER) == [[20, 0], [70, 10], [50, 0], [0, 0]]
    assert (line.issue.tolist(), line.resume.tolist()) == ([0], [2])
    assert line.exposed.tolist() == [False]
    assert (line.opens.tolist(), line.closes.tolist()) == ([0, 2], [2, 3])


def test_a_collective_after_which_nothing_was_waited_for_leaves_idle_time():
    """Computation begins while it still runs, so that it cannot have waited for it."""
    rank = RankBuilder().step(0, 0, 60_000)
    rank.comm("nccl", 10_000, 50_000).kernel("gemm", 30_000, 60_000)
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION, Own.OTHER) == [[0, 10_000], [30_000, 20_000], [0, 0]]


def launched_after_a_collective(launch: int, *, wait: bool) -> MainLine:
    rank = RankBuilder().step(0, 0, 100_000)
    rank.kernel("gemm", 0, 20_000, launched=(0, 1_000)).comm("nccl", 20_000, 50_000)
    if wait:
        rank.call("cudaStreamSynchronize", 30_000, 52_000)
    return line_of(rank.kernel("gemm", 60_000, 100_000, launched=(launch, launch + 2_000)))


def test_a_kernel_that_was_launched_in_time_waited_for_the_collective_before_it():
    line = launched_after_a_collective(10_000, wait=False)
    assert line.exposed.tolist() == [True]


def test_a_kernel_that_was_launched_after_a_collective_did_not_wait_for_it():
    """The GPU would have waited for its launch without the collective, too."""
    line = launched_after_a_collective(56_000, wait=False)
    assert line.exposed.tolist() == [False]
    assert spent(line, Own.COMPUTATION, Own.HOST) == [[20_000, 0], [40_000, 40_000], [0, 0]]


def test_a_kernel_whose_launch_waited_for_the_collective_did_wait_for_it():
    assert launched_after_a_collective(56_000, wait=True).exposed.tolist() == [True]


def test_the_second_of_two_collectives_is_asked_for_after_the_first():
    rank = RankBuilder().step(0, 0, 50)
    rank.kernel("gemm", 0, 10).comm("nccl", 10, 20).comm("nccl", 20, 40, stream=21)
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION, Own.OTHER) == [[10, 0], [0, 0], [0, 10], [0, 0]]
    assert (line.issue.tolist(), line.resume.tolist()) == ([0, 1], [1, 2])


def test_a_queued_collective_was_ready_when_what_was_launched_before_it_was_done():
    """The second starts as the first ends, but was launched between the first two kernels."""
    rank = RankBuilder().step(0, 0, 100)
    rank.comm("nccl", 5, 60, launched=(1, 2))
    rank.kernel("gemm", 5, 25, launched=(2, 3))
    rank.comm("nccl", 60, 80, launched=(3, 4))
    rank.kernel("gemm", 25, 100, launched=(4, 5))
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION) == [[0], [20], [75], [0]]
    assert line.issue.tolist() == [0, 1]


def test_idle_time_keeps_its_cause():
    rank = RankBuilder().step(0, 0, 100)
    rank.kernel("gemm", 0, 40, launched=(0, 0)).kernel("gemm", 70, 100, launched=(68, 70))
    rank.call("distprof:input", 45, 65, category="annotation")
    line = line_of(rank)
    assert spent(line, Own.COMPUTATION, Own.INPUT, Own.HOST) == [[70, 20, 10], [0, 0, 0]]


def test_what_lies_outside_the_windows_is_absent():
    rank = RankBuilder().kernel("gemm", 0, 100).comm("nccl", 10, 20).comm("nccl", 60, 120)
    line = line_of(rank, windows=[(50, 100)])
    assert line.issue.tolist() == [ABSENT, 0]
    assert line.resume.tolist() == [ABSENT, ABSENT]


def test_being_blocked_in_a_message_is_no_own_time():
    rank = RankBuilder().step(0, 0, 100)
    rank.kernel("gemm", 0, 30).kernel("wait", 30, 70, kind=ActivityKind.WAITING)
    rank.kernel("gemm", 70, 100)
    line = line_of(rank, is_cpu=True)
    assert spent(line, Own.COMPUTATION, Own.OTHER) == [[30, 0], [30, 0], [0, 0]]
    assert (line.wait_start_ns.tolist(), line.wait_end_ns.tolist()) == ([30], [70])
    assert line.wait_resume.tolist() == [1]


TIMES = st.integers(0, 60)


@given(
    st.lists(st.tuples(TIMES, st.integers(1, 20)), max_size=6),
    st.lists(st.tuples(TIMES, st.integers(1, 20), st.booleans()), max_size=6),
    st.lists(TIMES, min_size=2, max_size=4, unique=True),
)
def test_own_time_and_exposed_communication_fill_the_line(kernels, collectives, cuts):
    """What is not own time is exposed communication, and no segment is lost."""
    rank = RankBuilder()
    for start, length in kernels:
        rank.kernel("gemm", start, start + length)
    for start, length, other in collectives:
        rank.comm("nccl", start, start + length, stream=20 + other)
    low, high = min(cuts), max(cuts)
    windows = list(zip(sorted(cuts)[:-1], sorted(cuts)[1:], strict=True))
    analysis = measured(rank, windows=windows)
    line = analysis.line
    exposed = sum(step.exposed_comm_ns for step in analysis.steps)
    computation = sum(step.computation_ns for step in analysis.steps)
    assert high - low - exposed <= line.own_ns.sum() <= high - low
    assert line.own_ns[:, Own.COMPUTATION].sum() == computation
    assert line.own_ns.min() >= 0
    assert line.own_ns[-1].sum() == 0
    assert (np.diff(line.opens) > 0).all()
    inside = line.resume != ABSENT
    assert (line.resume[inside] < len(line)).all()
    assert ((line.issue == ABSENT) | (line.resume == ABSENT) | (line.issue < line.resume)).all()


def test_a_line_does_not_depend_on_when_it_was_recorded():
    rank, later = RankBuilder(), RankBuilder()
    far = 4 * 10**18
    for builder, shift in ((rank, 0), (later, far)):
        builder.step(0, shift, shift + 100)
        builder.kernel("gemm", shift, shift + 40).comm("nccl", shift + 40, shift + 60)
    first, second = line_of(rank), line_of(later)
    same = [field.name for field in fields(MainLine) if field.name not in ("start_ns", "bounds")]
    assert second.start_ns == far
    for name in same:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_message_that_came_in_time_is_needed_by_the_slot_that_works_on_it():
    rank = RankBuilder().step(0, 0, 100)
    for batch, start in enumerate((0, 40)):
        rank.annotation(f"distprof:pp stage=1 op=F mb={batch}", start, start + 40)
        rank.kernel("gemm", start, start + 40, launched=(start, start + 1))
    rank.kernel("adam", 80, 100)
    rank.comm("recv", 5, 20, kind=CollectiveKind.RECV, peer=0)
    line = line_of(rank)
    assert line.exposed.tolist() == [False]
    assert spent(line, Own.COMPUTATION) == [[5], [35], [60], [0]]
    assert (line.issue.tolist(), line.resume.tolist()) == ([0], [2])
    assert line.stage_ns.tolist() == [5, 35, 40, 0]  # the optimizer is no stage's work


US = 1_000


def waiting_until(went_on_us, ended_us):
    """A rank that computes, waits for a collective, and computes again; times in µs."""
    rank = RankBuilder().step(0, 0, 9_000 * US)
    rank.kernel("gemm", 0, 1_000 * US).comm("gloo", 200 * US, ended_us * US)
    return rank.kernel("gemm", went_on_us * US, 9_000 * US)


def test_a_thread_that_notes_an_end_late_does_not_make_waiting_own_time():
    late = line_of(waiting_until(5_000, 5_100), is_cpu=True)
    assert late.exposed.tolist() == [True]
    assert spent(late, Own.COMPUTATION, Own.OTHER) == [
        [200 * US, 0], [800 * US, 0], [4_000 * US, 0], [0, 0]
    ]  # fmt: skip
    assert late.resume.tolist() == [2]


def test_on_a_busy_machine_the_end_may_be_noted_a_share_of_the_wait_later():
    """The thread that notes it waits for a free CPU, while the rank already works now and then."""
    rank = RankBuilder().step(0, 0, 9_000 * US)
    rank.kernel("gemm", 0, 1_000 * US).comm("gloo", 200 * US, 6_000 * US)
    rank.kernel("copy", 5_000 * US, 5_700 * US).kernel("gemm", 6_000 * US, 9_000 * US)
    for is_cpu, went_on_us in ((True, 5_000), (False, 6_000)):
        line = line_of(rank, is_cpu=is_cpu)
        assert line.exposed.tolist() == [True]
        assert line.begin_ns[line.resume[0]] == went_on_us * US


def test_a_collective_that_ends_much_later_was_not_waited_for():
    """On a device a collective's end is exact, on a host it is noted soon."""
    for rank, is_cpu in ((waiting_until(5_000, 8_000), True), (waiting_until(5_000, 5_100), False)):
        line = line_of(rank, is_cpu=is_cpu)
        assert line.exposed.tolist() == [False]
        assert line.own_ns[:, Own.OTHER].sum() == 4_000 * US


def test_a_reduction_that_ends_while_the_rank_waits_for_another_blocks_nothing():
    """Both were asked for at 10; only the second one's end lets the rank go on."""
    rank = RankBuilder().step(0, 0, 50)
    rank.kernel("gemm", 0, 10).comm("nccl", 10, 20).comm("nccl", 10, 40, stream=21)
    rank.kernel("gemm", 40, 50)
    line = line_of(rank)
    assert line.exposed.tolist() == [False, True]
    assert line.resume[1] < line.resume[0]


def test_a_receive_that_a_later_slot_needs_does_not_hold_up_an_earlier_one():
    """While the stage waits for its second forward's input, the gradient of its first comes."""
    rank = RankBuilder().step(0, 0, 100)
    for op, batch, start, end in (("F", 0, 10, 20), ("F", 1, 40, 50), ("B", 0, 50, 70)):
        rank.annotation(f"distprof:pp stage=1 op={op} mb={batch}", start, end)
        rank.kernel("gemm", start, end, launched=(start, start + 1))
    rank.kernel("adam", 70, 100)
    rank.comm("recv", 0, 10, kind=CollectiveKind.RECV, peer=0)
    rank.comm("recv", 10, 40, kind=CollectiveKind.RECV, peer=0)
    rank.comm("recv", 12, 30, kind=CollectiveKind.RECV, peer=2, stream=21)
    line = line_of(rank)
    assert line.exposed.tolist() == [True, True, False]
    assert line.resume[2] > line.resume[1]
