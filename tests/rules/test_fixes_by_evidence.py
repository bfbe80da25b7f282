"""Fixes and names that depend on what was measured: copies, settings, network cards, input."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.intervals import Intervals
from distprof.rules.engine import run_rules
from distprof.sections.collectives import CollectivesResult
from distprof.sections.ending import EndingResult
from distprof.sections.gradients import GradientsResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.nccl import NcclResult, NcclSetting, NcclTransport
from distprof.sections.sharding import ShardingResult
from distprof.sections.stragglers import StepBlame, StragglersResult
from distprof.sections.summaries import InputReadinessResult, LatePeriod
from distprof.sections.time import ExposedCopies, WaterfallResult
from distprof.sections.time.measure import direction_of, exposed_copies, measure_copies
from tests.builders import RankBuilder
from tests.rules.fixtures.collectives import bad_arrival_skew_bound_collectives
from tests.rules.fixtures.ending import bad_job_stopped
from tests.rules.fixtures.input import bad_input_bound, bad_loader_without_workers
from tests.rules.fixtures.job import bad_job_failed
from tests.rules.fixtures.overlap import bad_exposed_communication, bad_low_overlap
from tests.rules.fixtures.whatif import bad_unexplained_loss
from tests.rules.samples import (
    MS,
    STEPS,
    changed,
    collective_class,
    collectives,
    gradient_group,
    gradients,
    healthy,
    nccl_host,
    nccl_setting,
    pauses,
    sharded_axis,
    straggler,
    stragglers,
)


def finding(code, results):
    found = {one.code: one for one in run_rules(results.values(), debug=True).findings}
    return found.get(code)


# CAP106


def ended(cause, ranks=()):
    """Rank 2 was killed according to the run directory; the output names another cause."""
    told = replace(
        bad_job_stopped()[EndingResult], cause=cause, verdict="A told cause.", ranks=ranks
    )
    return finding("CAP106", {**bad_job_failed(), EndingResult: told})


def test_output_does_not_contradict_the_run_directory_about_who_failed_first():
    assert ended("peer") is None
    assert ended("exception", ranks=(0,)) is None
    assert ended("killed", ranks=(2,)) is not None
    assert ended("host_memory") is not None


# HST103


def test_collections_are_compared_with_the_steps_that_they_are_in():
    """They make every third step 40 ms longer, so the median of 20 ms is of steps without any."""
    rows = tuple(replace(row, step_ns=34 * MS) for row in pauses({1: 13.6 * MS}).ranks)
    found = finding("HST103", {**healthy(), PausesResult: PausesResult(ranks=rows)})
    assert "40.0 % of each step" in found.headline
    assert "13.6 ms of 34.0 ms" in found.message


# COM101


@pytest.mark.parametrize(
    ("classes", "means"),
    [
        ([("all_reduce", "world", 3)], "bucket_cap_mb (DDP)"),
        ([("all_gather", "dp_shard", 3)], "set_modules_to_forward_prefetch and "),
        ([("all_reduce", "tp", 3)], "asynchronous tensor parallelism"),
        ([("all_to_all", "ep", 3)], "run the all-to-all of one half of the batch "),
        ([("all_gather", "cp", 3)], "async_op=True"),
    ],
)
def test_overlap_is_gained_by_what_this_job_uses(classes, means):
    assert means_of(classes).startswith(means)
    assert ";" not in means_of(classes)


def test_means_come_in_the_order_of_the_time_that_they_are_for():
    classes = [("all_reduce", "world", 2), ("all_to_all", "ep", 3), ("all_reduce", "tp", 0.4)]
    first, second = means_of(classes).split("; ")
    assert first.startswith("run the all-to-all")
    assert second == "bucket_cap_mb (DDP)."  # a tenth of the time at least


def means_of(classes):
    """What COM101 advises for classes of kind, axis and exposed transfer in ms."""
    rows = [
        collective_class(kind=kind, axis=axis, exposed_ns_per_step=ns, exposed_wait_ns_per_step=0)
        for kind, axis, ms in classes
        for ns in [round(ms * MS)]
    ]
    results = {
        **bad_low_overlap(),
        CollectivesResult: collectives(*rows),
        GradientsResult: gradients(gradient_group(axis="world")),
        ShardingResult: ShardingResult(axes=(sharded_axis(),)),
    }
    before, means = finding("COM101", results).fix.split("during computation: ")
    assert before == "Start transfers earlier, "
    return means


# MEM101


def copies(direction, memory, ms, number=4.0):
    return ExposedCopies(
        direction=direction,
        host_memory=memory,
        num_per_step=number,
        bytes_per_step=None,
        exposed_ns_per_step=round(ms * MS),
    )


def copying(*rows):
    total = sum(row.exposed_ns_per_step for row in rows) / MS
    return changed(healthy(exposed_copy=total), WaterfallResult, copies=rows)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "pageable")),
        ("Memcpy HtoD (Pinned -> Device)", ("HtoD", "pinned")),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", "pinned")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", "")),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", "")),
        ("CopyHostToDevice", ("HtoD", "")),
        ("CopyDeviceToDevice", ("DtoD", "")),
        ("Memset (Device)", ("memset", "")),
        ("something else", ("other", "")),
    ],
)
def test_directions_of_copies(name, told):
    assert direction_of(name) == told


def test_copies_within_the_gpu_are_not_told_to_be_pinned():
    found = finding("MEM101", copying(copies("DtoD", "", 3)))
    assert "3.00 ms in 4 copies within the GPU" in found.message
    assert "in" in found.fix
    assert "Pin" not in found.fix
    assert "pin_memory" not in found.fix


def test_what_is_pinned_already_is_said_to_be():
    found = finding("MEM101", copying(copies("HtoD", "pinned", 3)))
    assert "copies from pinned CPU memory" in found.message
    assert "already pinned" in found.fix
    assert "pin_memory=True" not in found.fix


def test_pageable_copies_are_pinned_and_the_rest_is_named_with_its_share():
    found = finding("MEM101", copying(copies("HtoD", "pageable", 2), copies("DtoD", "", 1)))
    assert "2.00 ms in 4 copies from pageable CPU memory" in found.message
    assert "1.00 ms in 4 copies within the GPU" in found.message
    assert found.fix.startswith("Pin CPU memory")


def test_exposed_copies_by_hand():
    """A pinned copy of 40 ns hides behind a kernel for 10; one of 20 within the GPU is alone."""
    rank = RankBuilder(0)
    rank.step(0, 0, 200)
    rank.copy("Memcpy HtoD (Pinned -> Device)", 10, 50)
    rank.copy("Memcpy DtoD (Device -> Device)", 100, 120)
    rank.copy("Memcpy DtoD (Device -> Device)", 300, 320)  # outside the window
    window = Intervals(np.array([0]), np.array([200]))
    alone = Intervals(np.array([20, 100]), np.array([50, 120]))
    found = measure_copies(rank.tables().activity, window, alone)
    rows = exposed_copies([found, found], num_samples=2)
    assert [(row.direction, row.host_memory, row.num_per_step) for row in rows] == [
        ("HtoD", "pinned", 1.0),
        ("DtoD", "", 1.0),
    ]
    assert [row.exposed_ns_per_step for row in rows] == [30, 20]


def test_copies_are_named_by_the_outermost_operator_that_launched_them():
    rank = RankBuilder(0).step(0, 0, 200)
    rank.call("autograd::engine", 0, 90, category="cpu_op").call(
        "aten::cat", 5, 40, category="cpu_op"
    )
    rank.call("aten::copy_", 10, 30, category="cpu_op").call(
        "aten::clone", 45, 60, category="cpu_op"
    )
    rank.copy("Memcpy DtoD (Device -> Device)", 20, 30, launched=(12, 14))
    rank.copy("Memcpy DtoD (Device -> Device)", 50, 90, launched=(50, 52))
    rank.copy("Memcpy DtoD (Device -> Device)", 150, 160, launched=(100, 102))
    tables = rank.tables()
    window = Intervals(np.array([0]), np.array([200]))
    alone = Intervals(np.array([20, 50, 150]), np.array([30, 90, 160]))
    found = measure_copies(tables.activity, window, alone, lambda: tables.host)
    (row,) = exposed_copies([found], num_samples=1)
    assert row.operators == ("aten::clone", "aten::cat")
    message = finding("MEM101", copying(replace(row, exposed_ns_per_step=3 * MS))).message
    assert "copies within the GPU by aten::clone and aten::cat" in message


def test_operators_are_read_only_where_copies_are_exposed_for_long():
    rank = RankBuilder(0).step(0, 0, 1000).copy("Memcpy DtoD (Device -> Device)", 20, 30)
    window = Intervals(np.array([0]), np.array([1000]))
    alone = Intervals(np.array([20]), np.array([30]))
    (found,) = measure_copies(rank.tables().activity, window, alone, lambda: pytest.fail("read"))
    assert found.operators == {}


# NET105


def printed(value, processes, printing):
    return NcclSetting(
        name="NCCL_ALGO",
        value=value,
        num_processes=processes,
        ranks=tuple(range(processes)),
        hosts=("node-1",),
        num_printing=printing,
    )


def test_a_process_that_prints_a_setting_twice_differs_from_no_other():
    """Each of 8 processes prints Ring for one communicator and Tree for another."""
    both = (printed("Ring", 8, 8), printed("Tree", 8, 8))
    assert finding("NET105", changed(healthy(), NcclResult, settings=both)) is None


def test_processes_that_print_different_values_differ():
    apart = (printed("Ring", 6, 8), printed("Tree", 2, 8))
    found = finding("NET105", changed(healthy(), NcclResult, settings=apart))
    assert "NCCL_ALGO is Ring on 6 processes" in found.message


# NET102


def plain(cards, version="2.18.5+cuda12.2", **fields):
    hosts = tuple(replace(nccl_host(f"node-{i}", (i,)), cards=(cards,)) for i in (1, 2))
    way = NcclTransport(where="between nodes", transport="NET/IB", has_gdr=False, num_lines=8,
                        num_connections=8, num_pairs=4, num_processes=8)  # fmt: skip
    versions = (nccl_setting("version", version),)
    fields = {"hosts": hosts, "transports": (way,), "versions": versions, **fields}
    return changed(healthy(), NcclResult, **fields)


@pytest.mark.parametrize(
    ("results", "has", "lacks"),
    [
        (plain("mlx5_0:1"), "nvidia-peermem", "PSM2"),
        (plain("hfi1_0:1"), "PSM2", "nvidia-peermem"),
        (plain("mlx5_0:1", "2.22.3-HEAD:271856d"), "amdgpu", "nvidia-peermem"),
        (plain("mlx5_0:1", "2.20.5+hip6.2"), "amdgpu", "nvidia-peermem"),
        (plain("", paths=("XGMI",)), "amdgpu", "nvidia-peermem"),
        (plain("efa_0"), "aws-ofi-nccl", "nvidia-peermem"),
        (plain("cxi0"), "Slingshot", "EFA"),
        (plain("bnxt_re0:1"), "DMA-BUF", "nvidia-peermem"),
    ],
)
def test_the_fix_for_gpudirect_is_the_vendors(results, has, lacks):
    fix = finding("NET102", results).fix
    assert has in fix
    assert lacks not in fix


# INP108


def test_ranks_are_named_by_their_share_of_the_time_and_not_by_when():
    """Rank 3 is late first, for a tenth; rank 5 in two periods, for 70 % together."""
    spans = ((3, 0, 10), (5, 10, 40), (4, 50, 20), (5, 70, 30))
    periods = tuple(
        LatePeriod(rank=rank, first_sample=first, num_samples=number, mean_ratio=0.5)
        for rank, first, number in spans
    )
    late = InputReadinessResult(num_samples=100, job_ratio=0.5, periods=periods)
    found = finding("INP108", {**healthy(), InputReadinessResult: late})
    assert found.message == "Most often it is rank 5 (70.0 %), rank 4 (20.0 %), rank 3 (10.0 %)."


# INP101, INP103


@pytest.mark.parametrize("bad", [bad_input_bound, bad_loader_without_workers])
@pytest.mark.parametrize("is_cpu", [False, True])
def test_input_of_a_cpu_job_is_not_blamed_on_an_idle_gpu(bad, is_cpu):
    (found,) = run_rules(changed(bad(), IdleResult, is_cpu=is_cpu).values(), debug=True).findings
    assert ("the GPU idles" in found.message) is not is_cpu
    assert ("nothing computes" in found.message) is is_cpu
    assert ("pin_memory" in found.fix) is not is_cpu


@pytest.mark.parametrize(("slept_ms", "is_busy"), [(1, True), (2, False), (None, False)])
def test_more_workers_are_no_help_to_a_thread_that_never_waits(slept_ms, is_busy):
    """Of 3 ms per step without work for the GPU, the training thread sleeps so long."""
    results = bad_input_bound()
    ranks = results[PausesResult].ranks
    slept = None if slept_ms is None else slept_ms * MS
    ranks = tuple(replace(rank, slept_ns_per_step=slept) for rank in ranks)
    found = finding("INP101", changed(results, PausesResult, ranks=ranks))
    assert ("num_workers" in found.fix) is not is_busy
    assert ("keeps the training thread busy" in found.headline) is is_busy


# Sentences on who is late


def steps_of(*ranks):
    """Steps in which these ranks cost most."""
    return tuple(StepBlame(step=n, lost_ns=1, rank=r, rank_lost_ns=1) for n, r in enumerate(ranks))


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ((3, 3, 3, 3), "Rank 3 is the latest in 4 of 4 steps. The"),
        ((3, 1, 3, 2), "3 ranks are the latest in one step or another, rank 3 most often (2 of 4"),
        ((3,), "The gain"),
        ((None, None), "The gain"),
    ],
)
def test_ranks_take_turns_only_if_the_steps_show_it(ranks, told):
    results = changed(bad_unexplained_loss(), StragglersResult, steps=steps_of(*ranks))
    assert finding("STR110", results).message.startswith(told)


LOOK = "look at what it does before its collectives."


@pytest.mark.parametrize(
    ("latest", "told"),
    [
        ((3, 3, 1), "most in 2 of 3 steps, as equal ranks may by chance."),
        ((3,) * 8, f"most in 8 of 8 steps: {LOOK}"),
        (
            (3, 1) * 2_000,
            "most in 2000 of 4000 steps: look at what it does before its collectives.",
        ),
        ((3, 3, 3, 3, 1), "most in 4 of 5 steps, as equal ranks may by chance."),
    ],
)
def test_a_suspect_is_named_with_the_steps_in_which_it_is_last(latest, told):
    """Of four equal ranks, one is the latest in four of five steps in 6 % of all cases."""
    late = straggler(3, lost_ns_per_step=3 * MS)
    ranks = (late, *(straggler(rank, lost_ns_per_step=0) for rank in range(3)))
    few = replace(stragglers(late), ranks=ranks, steps=steps_of(*latest), lost_ns_per_step=3 * MS)
    results = {**bad_arrival_skew_bound_collectives(), StragglersResult: few}
    message = finding("COM103", results).message
    assert message.endswith(f"Rank 3 causes 100 % of all waiting, {told}")


# COM102


def messages(axis, *computation_ms):
    results = bad_exposed_communication()
    classes = (collective_class(kind=kind, axis=axis) for kind in ("send", "recv"))
    ranks = tuple(
        replace(one, computation_ns=round(ms * MS) * len(STEPS))
        for one, ms in zip(results[WaterfallResult].ranks, computation_ms, strict=False)
    )
    results = changed(results, WaterfallResult, ranks=ranks)
    return finding("COM102", {**results, CollectivesResult: collectives(*classes)})


def test_a_ring_is_told_to_share_its_work_and_a_pipeline_to_fill_its_gaps():
    even, uneven = messages("cp", 16.0, 18.0), messages("cp", 8.0, 12.0, 16.0)
    assert "zigzag" in even.fix
    assert "pipeline" not in even.fix
    assert "Rank 2 computes 16.0 ms, rank 0 8.00 ms" in uneven.message
    assert "computes" not in even.message
    assert "zigzag" in messages("cp", 16.0).fix  # the only rank recorded
    assert "in a pipeline, use more micro-batches" in messages("pp", 8.0, 16.0).fix
