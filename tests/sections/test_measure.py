"""Measuring a run: windows, waits and axes of each rank, workers, and ranks that fail."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.errors import InputError
from distprof.run.run import CollectiveMatches
from distprof.run.tables import RankTables
from distprof.run.topology import ProcessGroup
from distprof.sections.measure_run import analysed_windows, windows_of_records
from distprof.terms import UNKNOWN_AXIS, CollectiveKind, MatchMethod, MeshAxis, StepSource
from tests.builders import RankBuilder, make_run
from tests.sections.measured import measure

TP = ProcessGroup(
    name="1", description="mesh_tp", ranks=(0, 1), size=2, backend="nccl", axis=MeshAxis.TP
)


def two_ranks() -> list[RankBuilder]:
    """Two steps; in each an all-reduce that rank 1 enters 10 ns late, and both end together."""
    builders = []
    for number, start in ((0, 40), (1, 50)):
        rank = RankBuilder(number, world_size=2)
        for step in (3, 4):
            base = 100 * (step - 3)
            rank.step(step, base, base + 100)
            rank.kernel("gemm", base + 5, base + start)
            rank.comm("nccl", base + start, base + 80, group="1", desc="mesh_tp", ranks=(0, 1))
        builders.append(rank)
    return builders


def matched_in_order(num_ranks: int, num_instances: int) -> CollectiveMatches:
    """The k-th collective of each rank belongs together."""
    total = num_ranks * num_instances
    return CollectiveMatches(
        offsets=np.arange(0, total + 1, num_ranks, dtype=np.int64),
        member_rank=np.tile(np.arange(num_ranks, dtype=np.int32), num_instances),
        member_row=np.repeat(np.arange(num_instances, dtype=np.int64), num_ranks),
        group=np.zeros(num_instances, dtype=np.int32),
        kind=np.full(num_instances, CollectiveKind.ALL_REDUCE, dtype=np.int8),
        bytes=np.full(num_instances, 1024, dtype=np.int64),
        method=np.full(num_instances, MatchMethod.SEQUENCE, dtype=np.int8),
        complete=np.ones(num_instances, dtype=np.bool_),
        num_candidates=total,
        num_matched=total,
    )


def test_a_run_is_measured_in_its_common_steps():
    ranks = [builder.rank(step_note="by hand") for builder in two_ranks()]
    result = measure(make_run(ranks, steps=[3, 4], matches=matched_in_order(2, 2), groups=[TP]))
    assert sorted(result.analyses) == [0, 1]
    assert (result.analyses.window, result.analyses.num_windows) == ("steps", 2)
    assert (result.step_time.num_steps, result.step_time.median_ns) == (2, 100)
    assert (result.step_time.source, result.step_time.note) == (
        StepSource.PROFILER_STEP,
        "by hand",
    )
    assert [(row.rank, row.step, row.idle_ns) for row in result.breakdown.steps] == [
        (0, 3, 25),
        (0, 4, 25),
        (1, 3, 25),
        (1, 4, 25),
    ]


def test_the_wait_for_the_last_member_is_told_from_the_transfer():
    ranks = [builder.rank() for builder in two_ranks()]
    result = measure(make_run(ranks, steps=[3, 4], matches=matched_in_order(2, 2)))
    assert [
        (row.exposed_wait_ns, row.exposed_transfer_ns, row.exposed_comm_unsplit_ns)
        for row in result.waterfall.ranks
    ] == [(20, 60, 0), (0, 60, 0)]
    assert (result.waterfall.num_ranks, result.waterfall.num_steps) == (2, 2)


def test_only_the_wanted_steps_count():
    result = measure(make_run([two_ranks()[0].rank()], steps=[4]))
    assert [row.step for row in result.breakdown.steps] == [4]
    assert result.breakdown.ranks[0].span_ns == 100


def test_the_whole_capture_can_be_asked_for():
    """From the first kernel at 5 to the last end at 180; nothing is said about step times."""
    result = measure(make_run([two_ranks()[0].rank()], steps=[3, 4]), window="capture")
    assert (result.analyses.window, result.analyses.num_windows) == ("capture", 1)
    assert result.breakdown.ranks[0].span_ns == 175
    assert result.step_time.median_ns is None
    assert "whole capture" in result.step_time.unavailable[0]


@pytest.mark.parametrize("window", ["steps", "capture"])
def test_samples_of_a_rank_without_a_trace_count_in_the_windows_of_the_others(window):
    ranks = [
        RankBuilder(r).kernel("gemm", 0, 250).step(1, 0, 100).step(2, 100, 200) for r in (0, 1)
    ]
    run = make_run([rank.rank() for rank in ranks], steps=[1, 2])
    run = replace(run, records={0: None, 7: None})
    found = windows_of_records(run, analysed_windows(run, window))
    assert sorted(found) == [0, 1, 7]
    assert found[7] is found[0]
    assert found[0].size == (2 if window == "steps" else 1)
    first = run.ranks[0]
    if window == "capture":
        assert (found[0].start, found[0].end) == (first.capture_start_ns, first.capture_end_ns)


def test_without_common_steps_the_whole_capture_is_analysed():
    result = measure(make_run([two_ranks()[0].rank()]))
    assert result.analyses.window == "capture"
    assert result.breakdown.ranks[0].span_ns == 175


def test_a_rank_without_device_activity_has_nothing_to_measure():
    result = measure(make_run([RankBuilder(0).operator("aten::mm", 0, 10).rank()]))
    assert result.breakdown.ranks[0].span_ns == 0
    assert result.breakdown.steps == ()


def test_a_step_lasts_as_long_as_on_the_median_rank():
    spans = [(0, 90), (0, 110), (20, 115)]
    ranks = [RankBuilder(number).step(3, *span).rank() for number, span in enumerate(spans)]
    result = measure(make_run(ranks, steps=[3]))
    assert (result.step_time.median_ns, result.step_time.cv) == (95, None)


def test_a_rank_that_lacks_a_step_is_left_out_and_named():
    first, second = RankBuilder(0).step(3, 0, 90), RankBuilder(1).step(4, 0, 110)
    result = measure(make_run([first.rank(), second.rank()], steps=[3]))
    assert sorted(result.analyses) == [0]
    assert "Rank 1 lacks" in result.breakdown.unavailable[0]


def test_a_rank_whose_steps_overlap_is_left_out_and_named():
    first, second = RankBuilder(0).step(3, 0, 90), RankBuilder(1).step(3, 0, 90).step(4, 80, 110)
    first.step(4, 90, 110)
    result = measure(make_run([first.rank(), second.rank()], steps=[3, 4]))
    assert sorted(result.analyses) == [0]
    assert "Rank 1 has steps that overlap" in result.breakdown.unavailable[0]


def test_a_run_without_ranks_gives_empty_results():
    result = measure(make_run([]))
    assert result.analyses == {}
    assert result.waterfall.all is None


# Axes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "desc", "axis"),
    [
        ([TP], "mesh_tp", "tp"),
        ([], "mesh_tp", "mesh_tp"),
        ([], "", UNKNOWN_AXIS),
        ([], "undefined", UNKNOWN_AXIS),
    ],
)
def test_the_axis_is_the_groups_or_its_description_or_unknown(groups, desc, axis):
    rank = RankBuilder().comm("nccl", 0, 10, group="1", desc=desc, ranks=(0, 1))
    result = measure(make_run([rank.rank()], groups=groups))
    assert [row.axis for row in result.overlap.axes] == [axis]


def test_groups_of_one_name_are_told_apart_by_their_members():
    """PyTorch numbers groups per process: group 1 may be tp here and dp elsewhere."""
    dp = ProcessGroup(
        name="1", description="", ranks=(0, 2), size=2, backend="nccl", axis=MeshAxis.DP
    )
    rank = RankBuilder().comm("nccl", 0, 10, group="1", desc="", ranks=(0, 2))
    result = measure(make_run([rank.rank()], groups=[TP, dp]))
    assert [row.axis for row in result.overlap.axes] == ["dp"]


# Workers ------------------------------------------------------------------------------------------


def test_workers_give_what_one_thread_gives():
    run = make_run([builder.rank() for builder in two_ranks()], steps=[3, 4])
    alone = measure(run)
    with ThreadPoolExecutor(2) as pool:
        together = measure(run, executor=pool)
    assert together.breakdown == alone.breakdown
    assert together.waterfall == alone.waterfall
    assert together.kernels == alone.kernels


class OtherProcess:
    """Maps as a process pool does: all that crosses is pickled."""

    def map(self, function, items):
        for item in items:
            there, job = pickle.loads(pickle.dumps((function, item)))
            yield pickle.loads(pickle.dumps(there(job)))


def test_everything_can_cross_a_process_boundary():
    run = make_run([builder.rank() for builder in two_ranks()], steps=[3, 4])
    assert measure(run, executor=OtherProcess()).breakdown == measure(run).breakdown


class DyingPool:
    """A pool whose worker is killed at its second task."""

    def map(self, function, items):
        yield function(items[0])
        raise BrokenProcessPool("killed")


def test_a_worker_that_dies_costs_the_ranks_that_it_owed():
    run = make_run([builder.rank() for builder in two_ranks()], steps=[3, 4])
    result = measure(run, executor=DyingPool())
    assert sorted(result.analyses) == [0]
    assert "Ranks 1 could not be measured" in result.breakdown.unavailable[0]


@dataclass(frozen=True)
class Vanished:
    """Tables that were there when the run was opened."""

    error: Exception

    def load(self, *, every_host_row: bool = False) -> RankTables:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        InputError("rank1.json", expected="tables", found="nothing"),
        FileNotFoundError("activity.parquet"),
        ValueError("not a Parquet file"),
    ],
)
def test_a_rank_whose_tables_vanished_is_a_sentence_not_a_failure(error):
    first, second = (builder.rank() for builder in two_ranks())
    broken = replace(second, tables=Vanished(error))
    result = measure(make_run([first, broken], steps=[3, 4]))
    assert sorted(result.analyses) == [0]
    (sentence,) = result.breakdown.unavailable
    assert sentence.startswith("Rank 1 could not be measured: rank1.json: ")
    assert "\n" not in sentence
