"""Overlap: per rank, per axis, and what a collective leaves uncovered."""

from distprof.sections.context import RankAnalyses
from distprof.sections.overlap.measure import analyze_overlap
from tests.builders import RankBuilder
from tests.sections.measured import measured


def parts(row) -> tuple[int, int, int]:
    return row.communication_ns, row.overlapped_ns, row.exposed_comm_ns


def test_overlap_is_the_share_of_communication_under_computation():
    rank = RankBuilder().kernel("gemm", 0, 40).comm("nccl", 30, 70)
    overlap = measured(rank, windows=[(0, 100)]).overlap
    assert parts(overlap) == (40, 10, 30)
    assert overlap.computation_ns == 40
    assert overlap.overlap_ratio == 0.25


def test_without_communication_there_is_no_ratio():
    """World size 1: zero communication is not zero overlap."""
    overlap = measured(RankBuilder().kernel("gemm", 0, 40), windows=[(0, 100)]).overlap
    assert parts(overlap) == (0, 0, 0)
    assert overlap.overlap_ratio is None


def test_communication_does_not_hide_communication():
    rank = RankBuilder().comm("a", 0, 50, stream=20).comm("b", 20, 70, stream=21)
    assert parts(measured(rank, windows=[(0, 100)]).overlap) == (70, 0, 70)


def test_copies_do_not_hide_communication():
    rank = RankBuilder().comm("nccl", 0, 50).copy("Memcpy DtoD", 0, 50)
    assert parts(measured(rank, windows=[(0, 100)]).overlap) == (50, 0, 50)


def test_only_the_windows_count():
    rank = RankBuilder().kernel("gemm", 0, 40).comm("nccl", 30, 70)
    assert parts(measured(rank, windows=[(35, 45), (60, 65)]).overlap) == (15, 5, 10)


def test_axes_are_measured_apart_and_may_be_busy_at_once():
    """tp = [0, 30), dp = [20, 60) and [50, 70), computation = [25, 55)."""
    rank = (
        RankBuilder()
        .comm("tp", 0, 30, stream=20)
        .comm("dp", 20, 60, stream=21)
        .comm("dp", 50, 70, stream=22)
        .kernel("gemm", 25, 55)
    )
    analysis = measured(rank, windows=[(0, 100)], axis=["tp", "dp", "dp"])
    assert {axis.axis: parts(axis) for axis in analysis.axes} == {
        "dp": (50, 30, 20),
        "tp": (30, 5, 25),
    }
    assert parts(analysis.overlap) == (70, 30, 40)


def test_communication_without_a_record_counts_for_the_rank_and_for_no_axis():
    rank = RankBuilder().comm("multimem_all_reduce", 0, 10, record=False).comm("nccl", 20, 30)
    analysis = measured(rank, windows=[(0, 100)])
    assert analysis.overlap.communication_ns == 20
    assert [axis.communication_ns for axis in analysis.axes] == [10]


def test_axes_add_up_over_the_ranks_that_have_them():
    first = RankBuilder(0).comm("tp", 0, 30).kernel("gemm", 0, 10)
    second = RankBuilder(1).comm("tp", 0, 50).comm("dp", 60, 70)
    result = analyze_overlap(
        RankAnalyses.of(
            [
                measured(first, windows=[(0, 100)], axis=["tp"]),
                measured(second, windows=[(0, 100)], axis=["tp", "dp"]),
            ]
        )
    )
    assert [(axis.axis, axis.ranks, *parts(axis)) for axis in result.axes] == [
        ("dp", (1,), 10, 0, 10),
        ("tp", (0, 1), 80, 10, 70),
    ]
    assert result.axes[1].overlap_ratio == 0.125


# Per collective -----------------------------------------------------------------------------------


def test_exposed_time_of_each_collective_inside_the_windows():
    rank = RankBuilder().kernel("gemm", 0, 40).comm("a", 30, 70).comm("b", 90, 130)
    analysis = measured(rank, windows=[(0, 100)])
    assert analysis.exposed.ns.tolist() == [30, 10]


def test_exposed_wait_of_each_collective_is_absent_where_it_was_not_matched():
    """The last member of ``a`` starts at 60, of ``b`` before its own start; ``c`` has no match."""
    rank = RankBuilder().kernel("gemm", 0, 40).comm("a", 30, 70).comm("b", 75, 80).comm("c", 85, 90)
    analysis = measured(rank, windows=[(0, 100)], wait_end=[60, 74, -1])
    assert analysis.exposed.wait_ns.tolist() == [20, 0, -1]


def test_a_collective_belongs_to_the_window_it_ends_in():
    """Ends: in the first, exactly at the border (still the first), in the second, outside."""
    rank = RankBuilder().comm("a", 0, 40).comm("b", 10, 50).comm("c", 45, 60).comm("d", 90, 120)
    analysis = measured(rank, windows=[(0, 50), (50, 100)])
    assert analysis.collective_step.tolist() == [0, 0, 1, -1]


def test_on_a_cpu_a_collective_belongs_to_the_step_that_asked_for_it():
    """A backend's thread may end it when the next step has begun, or even start it then."""
    rank = RankBuilder().comm("a", 20, 60, launched=(10, 12)).comm("b", 55, 70, launched=(45, 46))
    rank.comm("c", 60, 90, launched=(51, 52)).comm("d", 80, 95)
    analysis = measured(rank, windows=[(0, 50), (50, 100)], is_cpu=True)
    assert analysis.collective_step.tolist() == [0, 0, 1, 1]


def test_a_capture_has_all_its_collectives_whenever_they_were_asked_for():
    rank = RankBuilder().comm("a", 20, 60, launched=(10, 12)).kernel("gemm", 30, 40)
    assert measured(rank, is_cpu=True).collective_step.tolist() == [0]
