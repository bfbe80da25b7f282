"""What each collective exposes: nothing is counted twice, and the rows add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import RankBuilder
from tests.sections.measured import measured

WHOLE = [(0, 100)]


def rows(rank: RankBuilder, wait_end: list[int]) -> tuple[list[int], list[int]]:
    analysis = measured(rank, windows=WHOLE, wait_end=wait_end)
    return analysis.exposed.ns.tolist(), analysis.exposed.wait_ns.tolist()


def test_one_collective_exposes_what_computation_leaves():
    """Wait = [10, 30), transfer = [30, 50), computation = [20, 40)."""
    rank = RankBuilder().comm("nccl", 10, 50).kernel("gemm", 20, 40)
    assert rows(rank, [30]) == ([20], [10])


def test_two_that_wait_together_wait_once():
    """Both wait for one rank that comes at 60; the first began it."""
    rank = RankBuilder().comm("a", 0, 70, stream=20).comm("b", 20, 80, stream=21)
    assert rows(rank, [60, 60]) == ([70, 10], [60, 0])


def test_waiting_goes_before_another_ones_transfer():
    """a transfers [10, 90), b waits [20, 60): those 40 are b's waiting."""
    rank = RankBuilder().comm("a", 0, 90, stream=20).comm("b", 20, 90, stream=21)
    assert rows(rank, [10, 60]) == ([50, 40], [10, 40])


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
        max_size=9,
    ),
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=4),
)
def test_rows_add_up_to_the_exposed_communication(
    collectives: list[tuple[int, int, int]], kernels: list[tuple[int, int]]
):
    rank = RankBuilder()
    for number, (start, wait, transfer) in enumerate(collectives):
        rank.comm("nccl", start, start + wait + transfer, stream=20 + number)
    for start, length in kernels:
        rank.kernel("gemm", start, start + length)
    wait_end = [start + wait for start, wait, _ in sorted(collectives, key=lambda row: row[0])]
    analysis = measured(rank, windows=[(0, 300)], wait_end=wait_end)
    assert analysis.exposed.ns.sum() == analysis.overlap.exposed_comm_ns
    assert (analysis.exposed.wait_ns <= analysis.exposed.ns).all()
    assert analysis.exposed.wait_ns.sum() == analysis.waterfall.exposed_wait_ns
