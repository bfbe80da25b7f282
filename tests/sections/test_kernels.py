"""Kernels: statistics by name on one rank, the table of all ranks, and ranks compared."""

from distprof.sections.context import RankAnalyses
from distprof.sections.kernels.measure import TABLE_LIMIT, analyze_kernels
from distprof.terms import ActivityKind
from tests.builders import RankBuilder
from tests.sections.measured import measured


def rank_of(number: int, **durations: list[int]) -> RankBuilder:
    """A rank that runs the named kernels one after another, with these durations."""
    rank = RankBuilder(number)
    clock = 0
    for name, times in durations.items():
        for time in times:
            rank.kernel(name, clock, clock + time)
            clock += time
    return rank


def combined(*ranks: RankBuilder):
    return analyze_kernels(RankAnalyses.of(measured(rank) for rank in ranks))


# One rank -----------------------------------------------------------------------------------------


def test_statistics_by_name_longest_total_first():
    rank = rank_of(0, gemm=[10, 40, 20], relu=[3, 4]).comm("nccl", 100, 200).range("all", 0, 900)
    assert [
        (k.name, ActivityKind(k.kind), k.count, k.total_ns, k.median_ns)
        for k in measured(rank).kernels
    ] == [
        ("nccl", ActivityKind.COMMUNICATION, 1, 100, 100),
        ("gemm", ActivityKind.COMPUTATION, 3, 70, 20),
        ("relu", ActivityKind.COMPUTATION, 2, 7, 3),
    ]


def test_a_kernel_belongs_to_the_window_it_starts_in_with_its_whole_duration():
    rank = RankBuilder().kernel("a", 40, 60).kernel("a", 60, 90).kernel("a", 200, 300)
    (stats,) = measured(rank, windows=[(0, 50), (150, 210)]).kernels
    assert (stats.count, stats.total_ns) == (2, 120)


def test_one_name_of_two_kinds_is_two_kernels():
    rank = RankBuilder().kernel("x", 0, 10).comm("x", 20, 25)
    assert [(k.kind, k.total_ns) for k in measured(rank).kernels] == [(0, 10), (1, 5)]


def test_durations_too_large_to_pack_give_the_same_statistics():
    rank = RankBuilder().kernel("a", 0, 2**61).kernel("b", 0, 5).kernel("c", 0, 7)
    rank.kernel("a", 0, 2**60).kernel("b", 0, 9).kernel("d", 3, 4).kernel("e", 3, 4)
    stats = {k.name: (k.count, k.median_ns) for k in measured(rank, windows=[(0, 9)]).kernels}
    assert stats["a"] == (2, 3 * 2**59)
    assert stats["b"] == (2, 7)


# All ranks ----------------------------------------------------------------------------------------


def test_the_table_adds_ranks_up_and_names_the_slowest():
    result = combined(
        rank_of(0, gemm=[10, 10]), rank_of(1, gemm=[12, 12]), rank_of(2, gemm=[15, 15])
    )
    (row,) = result.kernels
    assert (row.name, row.kind, row.count, row.total_ns) == ("gemm", "computation", 6, 74)
    assert (row.median_ns, row.slowest_rank, row.spread) == (12, 2, 1.25)


def test_a_kernel_of_one_rank_has_no_spread():
    (row,) = combined(rank_of(0, gemm=[10])).kernels
    assert (row.slowest_rank, row.spread) == (None, None)


def test_categories_are_sums_of_durations():
    first = rank_of(0, gemm=[10, 20]).comm("nccl", 0, 5).copy("Memcpy HtoD", 0, 2)
    result = combined(first, rank_of(1, gemm=[30]))
    assert [(c.kind, c.count, c.total_ns) for c in result.categories] == [
        ("computation", 3, 60),
        ("communication", 1, 5),
        ("copy", 1, 2),
    ]


def test_a_long_table_is_folded_and_nothing_is_lost():
    durations = {f"kernel{i:03d}": [1000 - i] for i in range(TABLE_LIMIT + 50)}
    result = combined(rank_of(0, **durations))
    assert len(result.kernels) == TABLE_LIMIT
    last = result.kernels[-1]
    assert (last.name, last.kind, last.count) == ("(51 other kernels)", "other", 51)
    assert last.median_ns == 1000 - (TABLE_LIMIT + 24)
    assert sum(row.total_ns for row in result.kernels) == sum(map(sum, durations.values()))


def test_no_ranks_have_no_kernels():
    result = analyze_kernels(RankAnalyses.of([]))
    assert (result.categories, result.kernels, result.ranks) == ((), (), ())


# Ranks compared -----------------------------------------------------------------------------------


def test_of_two_ranks_the_faster_is_the_measure():
    result = combined(rank_of(0, gemm=[100] * 4), rank_of(1, gemm=[110] * 4))
    assert [rank.relative_time for rank in result.ranks] == [1.0, 1.1]
    assert [rank.num_shared_kernels for rank in result.ranks] == [1, 1]


def test_the_median_of_a_kernel_ignores_one_hiccup():
    """The clock dropped during one kernel, or it waited: one outlier makes no slow device."""
    result = combined(rank_of(0, gemm=[100] * 5), rank_of(1, gemm=[100, 100, 900, 100, 100]))
    assert [rank.relative_time for rank in result.ranks] == [1.0, 1.0]


def test_kernels_weigh_by_their_time():
    """gemm 900 of 1000 ns is 10 % slower on rank 1, relu as fast."""
    result = combined(
        rank_of(0, gemm=[900], relu=[100]),
        rank_of(1, gemm=[990], relu=[100]),
        rank_of(2, gemm=[900], relu=[100]),
    )
    assert result.ranks[1].relative_time == 1.09


def test_unequal_counts_are_more_work_and_not_compared_in_time():
    """Rank 1 runs half as many gemm more, in other sizes: its median says nothing of its speed."""
    result = combined(
        rank_of(0, gemm=[100] * 4, relu=[100]),
        rank_of(1, gemm=[200] * 6, relu=[100]),
        rank_of(2, gemm=[100] * 4, relu=[100]),
    )
    assert [rank.relative_time for rank in result.ranks] == [1.0, 1.0, 1.0]
    assert [rank.num_shared_kernels for rank in result.ranks] == [2, 1, 2]
    assert [rank.relative_work for rank in result.ranks] == [1.0, 1.4, 1.0]


def test_communication_does_not_make_a_rank_slow():
    result = combined(
        rank_of(0, gemm=[10]).comm("nccl", 50, 60), rank_of(1, gemm=[10]).comm("nccl", 50, 90)
    )
    assert [rank.relative_time for rank in result.ranks] == [1.0, 1.0]


def test_a_rank_alone_is_compared_with_nobody():
    (rank,) = combined(rank_of(7, gemm=[10])).ranks
    assert (rank.rank, rank.relative_time, rank.relative_work) == (7, None, None)


def test_ranks_without_common_kernels_are_not_compared():
    result = combined(rank_of(0, gemm=[10]), rank_of(1, conv=[10]))
    assert [rank.relative_time for rank in result.ranks] == [None, None]
