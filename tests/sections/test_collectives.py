"""Class table: transfer against waiting, bandwidths with the group's own size."""

import numpy as np
import pytest

from distprof.run.run import ClockAlignment
from distprof.run.topology import ProcessGroup
from distprof.sections.collectives.measure import analyze_collectives
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder, make_run
from tests.sections.joined import join_by_seq, joined_run
from tests.sections.measured import measure
from tests.simulator import Collective, Compute, SimulatedJob, SlowDevice

MS, US = 1_000_000, 1_000


def pair(*, second_starts: int = 300, end: int = 500, size: int = 8_000):
    """Two ranks, one step each, one all-reduce: 0 starts at 100, 1 later, both end together."""
    ranks = []
    for rank, start in ((0, 100), (1, second_starts)):
        builder = RankBuilder(rank).step(0, 0, 1_000)
        builder.kernel("gemm", 0, start)
        builder.comm("ncclAllReduce", start, end, ranks=(0, 1), seq=1, size=size)
        ranks.append(builder.rank())
    return ranks


def analysed(ranks, **more):
    matches, _ = join_by_seq(ranks)
    run = make_run(ranks, steps=[0], matches=matches, **more)
    return analyze_collectives(run, measure(run).analyses)


def test_transfer_runs_from_the_last_start_and_waiting_up_to_it():
    (record,) = analysed(pair()).classes
    assert (record.kind, record.group, record.group_size) == ("all_reduce", "default_pg", 2)
    assert record.transfer_ns_median == 200  # 300 .. 500
    assert record.wait_ns_median == 100  # 200 on rank 0, none on rank 1
    assert record.duration_ns_median == 300  # 400 and 200
    assert record.wait_ns_per_step == 100
    assert record.transfer_ns_per_step == 200
    assert record.exposed_ns_per_step == 300
    assert record.exposed_wait_ns_per_step == 100


def test_an_instance_counts_once_however_many_members_were_seen():
    (record,) = analysed(pair()).classes
    assert (record.count, record.num_matched) == (1, 1)


def test_bandwidth_is_bytes_over_transfer_times_the_factor_of_the_group():
    (record,) = analysed(pair(size=8_000)).classes
    assert record.algbw_bytes_per_s == 8_000 / 200e-9
    assert record.busbw_bytes_per_s == 8_000 / 200e-9  # 2 (2 - 1) / 2 = 1


def test_the_factor_is_of_the_groups_size_not_the_worlds():
    job = SimulatedJob(
        num_nodes=2,
        ranks_per_node=4,
        num_steps=3,
        axes={"tp": ((0, 1), (2, 3), (4, 5), (6, 7))},
        program=(
            Compute(ns=MS),
            Collective(axis="tp", kind=CollectiveKind.ALL_GATHER, bytes=10**6, transfer_ns=MS),
        ),
    )
    run = joined_run(job.run())
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert record.group_size == 2
    assert record.group == "mesh_tp"
    assert record.count == 4 * 3
    assert record.busbw_bytes_per_s == pytest.approx(record.algbw_bytes_per_s / 2)
    assert record.algbw_bytes_per_s == pytest.approx(1e6 / 1e-3, rel=0.01)


def test_a_single_rank_has_durations_and_exposure_but_no_transfer_or_waiting():
    result = analysed(pair()[:1])
    (record,) = result.classes
    assert (record.count, record.num_matched) == (1, 0)
    assert record.duration_ns_median == 400
    assert record.exposed_ns_per_step == 400
    assert record.transfer_ns_median is None
    assert record.wait_ns_per_step is None
    assert record.exposed_wait_ns_per_step is None
    assert record.busbw_bytes_per_s is None
    assert "separated" in result.unavailable[0]


def test_unmatched_rows_of_several_ranks_are_as_many_instances_as_the_busiest_saw():
    ranks = []
    for rank, times in ((0, 3), (1, 2)):
        builder = RankBuilder(rank).step(0, 0, 1_000)
        for i in range(times):
            builder.comm("ncclAllReduce", 100 * i, 100 * i + 50, ranks=(0, 1), size=64)
        ranks.append(builder.rank())
    run = make_run(ranks, steps=[0])
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert (record.count, record.num_matched) == (3, 0)


def test_clocks_that_cannot_be_compared_give_no_transfer():
    clock = ClockAlignment(
        domains=((0,), (1,)),
        names=("a", "b"),
        offset_ns=np.zeros(2),
        drift_ratio=np.zeros(2),
        reference_ns=0,
        residual_ns=np.array([0, 0], dtype=np.int64),
        component=np.array([0, 1], dtype=np.int32),
    )
    (record,) = analysed(pair(), clock=clock).classes
    assert record.num_matched == 1
    assert record.transfer_ns_median is None


def test_sizes_and_kinds_make_classes_and_unknown_sizes_have_no_bandwidth():
    builder = RankBuilder(0).step(0, 0, 1_000)
    builder.comm("ncclAllReduce", 0, 10, size=64)
    builder.comm("ncclAllReduce", 20, 50, size=128)
    builder.comm("ncclAllGather", 60, 80, kind=CollectiveKind.ALL_GATHER)
    run = make_run([builder.rank()], steps=[0])
    classes = analyze_collectives(run, measure(run).analyses).classes
    assert [(c.kind, c.bytes) for c in classes] == [
        ("all_reduce", 128),  # most exposed first
        ("all_gather", None),
        ("all_reduce", 64),
    ]


def test_rows_outside_the_analysed_steps_take_no_part():
    builder = RankBuilder(0).step(0, 0, 100).step(1, 100, 200)
    builder.comm("ncclAllReduce", 10, 30, size=64).comm("ncclAllReduce", 110, 170, size=64)
    run = make_run([builder.rank()], steps=[1])
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert (record.count, record.duration_ns_median) == (1, 60)


def test_a_group_is_called_by_its_name_where_its_description_says_nothing():
    builder = RankBuilder(0).step(0, 0, 100)
    builder.comm("ncclAllReduce", 10, 30, group="17", desc="undefined")
    run = make_run([builder.rank()], steps=[0])
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert record.group == "17"


def test_the_axis_comes_from_the_topology():
    builder = RankBuilder(0).step(0, 0, 100)
    builder.comm("ncclAllReduce", 10, 30, group="3", desc="mesh_tp")
    group = ProcessGroup(
        name="3", description="mesh_tp", ranks=(0, 1), size=2, backend="nccl", axis=MeshAxis.TP
    )
    run = make_run([builder.rank()], steps=[0], groups=[group])
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert record.axis == "tp"


def test_no_collectives_at_all_is_said():
    run = make_run([RankBuilder(0).step(0, 0, 100).kernel("gemm", 0, 50).rank()], steps=[0])
    result = analyze_collectives(run, measure(run).analyses)
    assert result.classes == ()
    assert result.unavailable == ("no collective was recorded",)


def test_known_transfer_and_waiting_are_found_on_skewed_clocks():
    job = SimulatedJob(
        program=(Compute(ns=4 * MS), Collective(transfer_ns=MS)),
        faults=(SlowDevice(rank=1, factor=1.5),),
        clock_offset_ns=(0, 8 * MS),
        compute_noise=0.0,
        end_jitter_ns=0,
    )
    run = joined_run(job.run())
    (record,) = analyze_collectives(run, measure(run).analyses).classes
    assert record.transfer_ns_median == pytest.approx(MS, abs=5_000)
    assert record.wait_ns_median == pytest.approx(2 * MS, abs=5_000)
    assert record.wait_ns_per_step == pytest.approx(1.5 * MS, abs=5_000)  # three of four wait 2 ms


def test_shifted_clocks_change_no_class():
    job = SimulatedJob(faults=(SlowDevice(rank=1, factor=1.3),))
    straight = joined_run(job.run())
    turned = joined_run(SimulatedJob(faults=job.faults, clock_offset_ns=(5 * MS, -5 * MS)).run())
    first, second = (
        analyze_collectives(run, measure(run).analyses).classes for run in (straight, turned)
    )
    assert [c.transfer_ns_per_step for c in first] == [c.transfer_ns_per_step for c in second]
    assert [c.wait_ns_per_step for c in first] == [c.wait_ns_per_step for c in second]


def test_sizes_that_vary_are_folded_into_powers_of_two_with_their_median():
    builder = RankBuilder(0).step(0, 0, 100_000)
    for i in range(40):  # 1,000 .. 1,039: 24 below 1,024 and 16 from it on
        builder.comm("nccl", 100 * i, 100 * i + 50, size=1_000 + i)
    run = make_run([builder.rank()], steps=[0])
    classes = analyze_collectives(run, measure(run).analyses).classes
    assert sorted((c.bytes, c.count) for c in classes) == [(1_011, 24), (1_031, 16)]


def test_a_few_sizes_stay_apart():
    builder = RankBuilder(0).step(0, 0, 100_000)
    for i in range(32):
        builder.comm("nccl", 100 * i, 100 * i + 50, size=1_000 + i)
    run = make_run([builder.rank()], steps=[0])
    assert len(analyze_collectives(run, measure(run).analyses).classes) == 32


def test_ranks_that_differ_in_one_word_only_are_not_taken_for_alike():
    """What the rank before said is used again where it is the same: groups by name, too."""
    ranks = []
    for rank, group in enumerate(("0-1", "0-1", "2-3", "2-3")):
        builder = RankBuilder(rank).step(0, 0, 1_000).kernel("gemm", 0, 100)
        members = (0, 1) if group == "0-1" else (2, 3)
        builder.comm("ncclAllReduce", 100, 500, ranks=members, seq=1, group=group, desc=group)
        ranks.append(builder.rank())
    found = {record.group: record.count for record in analysed(ranks).classes}
    assert found == {"0-1": 1, "2-3": 1}
