"""Waterfall: exposed communication divided by what matching found out, an exact sum."""

from dataclasses import replace

import msgspec
import pytest

from distprof.sections.context import RankAnalyses
from distprof.sections.shows import judge
from distprof.sections.time.measure import analyze_waterfall
from distprof.terms import CollectiveKind
from distprof.units import format_duration
from tests.builders import RankBuilder
from tests.sections.measured import measured
from tests.simulator import LateHost, SimulatedJob
from tests.simulator.trials import report_of


def test_exposed_communication_is_wait_until_the_last_member_starts_and_transfer_after():
    """Exposed is [40, 90); the last member starts at 60."""
    rank = RankBuilder().kernel("gemm", 0, 40).comm("nccl", 30, 90)
    waterfall = measured(rank, windows=[(0, 100)], wait_end=[60]).waterfall
    assert waterfall.exposed_wait_ns == 20
    assert waterfall.exposed_transfer_ns == 30
    assert waterfall.exposed_comm_unsplit_ns == 0
    assert waterfall.idle_unknown_ns == 10  # no host rows: nothing explains it


def test_the_last_member_does_not_wait():
    waterfall = measured(RankBuilder().comm("nccl", 30, 90), wait_end=[30]).waterfall
    assert (waterfall.exposed_wait_ns, waterfall.exposed_transfer_ns) == (0, 60)


def test_a_wait_ends_with_its_collective_whatever_the_clocks_say():
    """Clock error puts the last start after this member's end."""
    waterfall = measured(RankBuilder().comm("nccl", 30, 90), wait_end=[1000]).waterfall
    assert (waterfall.exposed_wait_ns, waterfall.exposed_transfer_ns) == (60, 0)


def test_unmatched_communication_is_not_split():
    rank = RankBuilder().comm("nccl", 0, 10).comm("nccl", 20, 50)
    waterfall = measured(rank, wait_end=[-1, 25]).waterfall
    assert waterfall.exposed_comm_unsplit_ns == 10
    assert waterfall.exposed_wait_ns == 5
    assert waterfall.exposed_transfer_ns == 25


def test_point_to_point_wait_is_kept_apart_and_yields_to_a_collective_wait():
    """recv waits in [0, 40), all-reduce in [30, 50): the common [30, 40) is the collective's."""
    rank = (
        RankBuilder()
        .comm("recv", 0, 60, kind=CollectiveKind.RECV, stream=20)
        .comm("nccl", 30, 60, stream=21)
    )
    waterfall = measured(rank, wait_end=[40, 50]).waterfall
    assert waterfall.exposed_p2p_wait_ns == 30
    assert waterfall.exposed_wait_ns == 20
    assert waterfall.exposed_transfer_ns == 10


def test_everything_adds_up_to_the_span():
    rank = (
        RankBuilder()
        .kernel("gemm", 0, 40)
        .comm("a", 30, 90)
        .comm("b", 95, 99)
        .copy("Memcpy HtoD", 110, 130)
    )
    waterfall = measured(rank, windows=[(10, 85), (90, 150)], wait_end=[70, -1]).waterfall
    values = msgspec.structs.asdict(waterfall)
    assert values.pop("span_ns") == 135
    assert values.pop("rank") == 0
    assert sum(values.values()) == 135


def test_ranks_add_up():
    first = measured(RankBuilder(0).comm("nccl", 0, 10), wait_end=[4]).waterfall
    result = analyze_waterfall(
        RankAnalyses.of(
            [
                measured(RankBuilder(0).comm("nccl", 0, 10), wait_end=[4]),
                measured(RankBuilder(1).comm("nccl", 4, 10), wait_end=[4]),
            ]
        )
    )
    assert result.ranks[0] == first
    assert result.all is not None
    assert result.all.rank == -1
    assert result.all.span_ns == 16
    assert (result.all.exposed_wait_ns, result.all.exposed_transfer_ns) == (4, 12)


def test_no_ranks_have_no_sum():
    assert analyze_waterfall(RankAnalyses.of([], num_windows=3)).all is None


# Few long steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "words"), [((12,), "step 12 takes"), ((12, 14), "steps 12, 14")])
def test_a_mean_that_a_few_long_steps_raise_is_not_all_that_is_said(steps, words):
    job = SimulatedJob(num_nodes=1, ranks_per_node=4, num_steps=8)
    slow = tuple(LateHost(rank=rank, ns=30_000_000, steps=steps) for rank in range(4))
    report = report_of(replace(job, faults=slow).run())
    (said,) = [why for why in judge(report).why if why.startswith("Usually a step takes")]
    usual = format_duration(report.step_time.median_ns)
    assert f"Usually a step takes {usual}; {words}" in said
    assert not any("Usually" in why for why in judge(report_of(job.run())).why)
