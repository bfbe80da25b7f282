"""What is gathered when: passes from the order of operations, prefetch, streams, tensor axes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.artefacts.fabric_file import FabricCurve, FabricFile, FabricFit
from distprof.run.topology import ProcessGroup
from distprof.sections.context import RankAnalyses
from distprof.sections.sharding import ShardingResult
from distprof.sections.sharding.measure import analyze_sharding
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder, make_run
from tests.sections.measured import measured

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE = CollectiveKind.ALL_REDUCE
UNITS = (40, 16, 16, 16)
"""The root and three blocks, elements."""


def operations(
    units: Sequence[int], micro_batches: int = 1, *, zero: int = 3, sync: bool = True
) -> list[tuple[CollectiveKind, int]]:
    """What fully_shard asks for in a step: kind and elements."""
    found = []
    for number in range(micro_batches):
        found += [(GATHER, size) for size in units]
        for size in reversed(units):
            if zero == 3:
                found.append((GATHER, size))
            if sync or number == micro_batches - 1:
                found.append((SCATTER, size))
    return found


def recorded(
    asked: Sequence[tuple[CollectiveKind, int]],
    axis: str = "dp_shard",
    *,
    beside: bool = True,
    stream: int = 20,
    element_bytes: int = 4,
    dtype: str = "Float",
) -> ShardingResult:
    """A step in which each operation takes 10 µs every 100 µs, beside a kernel or after it."""
    rank = RankBuilder(0).step(0, 0, 100_000 * (len(asked) + 1))
    for number, (kind, elements) in enumerate(asked):
        at = 100_000 * number
        rank.kernel("gemm", at, at + 50_000)
        begin = at + 10_000 if beside else at + 60_000
        name = f"ncclDevKernel_{kind.name}"
        rank.comm(
            name,
            begin,
            begin + 10_000,
            kind=kind,
            ranks=range(4),
            size=elements * element_bytes,
            dtype=dtype,
            stream=stream,
        )
    analysis = measured(rank, axis=[axis] * len(asked))
    return analyze_sharding(make_run([rank.rank()]), RankAnalyses.of([analysis]))


def test_a_step_of_zero_3_gathers_twice_and_reduces_once():
    (axis,) = recorded(operations(UNITS)).axes
    assert (axis.axis, axis.group_size, axis.num_units) == ("dp_shard", 4, 4)
    assert (axis.gathers_per_step, axis.scatters_per_step) == (8, 4)
    assert (axis.gather_passes, axis.scatter_passes) == (2.0, 1)
    assert axis.gather_bytes_per_step == 2 * sum(UNITS) * 4
    assert axis.scatter_bytes_per_step == sum(UNITS) * 4
    assert axis.gather_bytes_median == 64


@given(
    blocks=st.integers(1, 12),
    root=st.integers(0, 50),
    micro_batches=st.integers(1, 5),
    zero=st.sampled_from([2, 3]),
)
def test_passes_follow_from_the_order_however_often_units_repeat(blocks, root, micro_batches, zero):
    units = (root, *[16] * blocks) if root else (16,) * (blocks + 1)
    (axis,) = recorded(operations(units, micro_batches, zero=zero)).axes
    assert axis.num_units == len(units)
    assert axis.scatter_passes == micro_batches
    assert axis.gather_passes == pytest.approx((zero - 1) * micro_batches)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_without_synchronisation_gathers_alone_repeat(micro_batches):
    (axis,) = recorded(operations(UNITS, micro_batches, sync=False)).axes
    assert (axis.gather_passes, axis.scatter_passes) == (2.0 * micro_batches, 1)


def test_a_whole_model_in_one_unit_is_one_unit():
    (axis,) = recorded(operations((100,), 3)).axes
    assert (axis.num_units, axis.gather_passes, axis.scatter_passes) == (1, 6.0, 3)


def test_elements_count_rather_than_bytes_where_types_differ():
    asked = [(kind, size * (1 if kind is GATHER else 2)) for kind, size in operations(UNITS)]
    half = recorded(asked, dtype="c10::BFloat16", element_bytes=2)
    assert half.axes[0].gather_passes == 1.0


def test_passes_of_bytes_packed_together_are_not_known():
    (axis,) = recorded(operations(UNITS), dtype="Byte", element_bytes=1).axes
    assert axis.gather_passes is None
    assert axis.scatter_passes == 1


def test_the_world_shares_parameters_only_if_gathers_follow_each_other():
    assert recorded(operations(UNITS), "world").axes[0].axis == "world"
    pairs = [(GATHER, 16), (SCATTER, 16)] * 8
    assert recorded(pairs, "world").axes == ()
    assert recorded([(GATHER, 16)] * 8, "world").axes == ()


@pytest.mark.parametrize("axis", ["tp", "cp", "ep", "pp"])
def test_what_other_axes_gather_is_no_parameters(axis):
    assert recorded(operations(UNITS), axis).axes == ()


@pytest.mark.parametrize(("beside", "ratio"), [(True, 1.0), (False, 0.0)])
def test_gathers_are_ahead_if_they_begin_while_something_is_computed(beside, ratio):
    (axis,) = recorded(operations(UNITS), beside=beside).axes
    assert axis.ahead_ratio == ratio
    assert axis.gather_exposed_ns_per_step == (0 if beside else 80_000)
    assert axis.scatter_exposed_ns_per_step == (0 if beside else 40_000)
    assert axis.gather_wait_ns_per_step is None


@pytest.mark.parametrize(("stream", "number"), [(7, 12), (20, 0)])
def test_collectives_on_the_stream_of_the_kernels_are_found(stream, number):
    shared = recorded(operations(UNITS), beside=False, stream=stream).shared_streams
    assert sum(one.per_step for one in shared) == number
    assert sum(one.exposed_ns_per_step for one in shared) == 10_000 * number


def test_collectives_that_the_next_kernel_needs_are_right_on_its_stream():
    assert recorded([(REDUCE, 16)] * 8, "tp", stream=7).shared_streams == ()
    assert recorded([(REDUCE, 16)] * 8, "world", stream=7).shared_streams == ()


def test_tensor_traffic_tells_all_reduces_from_pairs():
    tensor = recorded([(REDUCE, 16)] * 3 + [(GATHER, 16), (SCATTER, 16)], "tp", beside=False).tensor
    assert tensor is not None
    assert (tensor.all_reduces_per_step, tensor.all_reduce_bytes_per_step) == (3, 192)
    assert (tensor.all_gathers_per_step, tensor.reduce_scatters_per_step) == (1, 1)
    assert (tensor.pair_bytes_per_step, tensor.pair_exposed_ns_per_step) == (128, 20_000)
    assert (tensor.all_reduce_exposed_ns_per_step, tensor.all_reduce_wait_ns_per_step) == (
        30_000,
        None,
    )
    assert tensor.overlap_ratio == 0.0


def test_a_job_that_shares_nothing_says_nothing():
    result = recorded([(REDUCE, 16)] * 8, "dp")
    assert (result.axes, result.tensor, result.unavailable) == ((), None, ())


def test_sizes_that_are_not_known_are_not_guessed():
    rank = RankBuilder(0).step(0, 0, 1_000)
    for number, (kind, _) in enumerate(operations(UNITS)):
        rank.comm("nccl", 10 * number, 10 * number + 5, kind=kind)
    analysis = measured(rank, axis=["dp_shard"] * 12)
    (axis,) = analyze_sharding(make_run([rank.rank()]), RankAnalyses.of([analysis])).axes
    assert (axis.gather_bytes_per_step, axis.gather_bytes_median) == (None, None)
    assert (axis.gather_passes, axis.scatter_passes, axis.group_size) == (None, 1, None)
    assert axis.ahead_ratio == 0.0


@pytest.mark.parametrize(("device", "start_up"), [("H100", 15_000), ("cpu", None)])
def test_a_fabric_profile_tells_the_start_up_of_a_gather(device, start_up):
    rank = RankBuilder(0).step(0, 0, 10_000)
    for number, (kind, size) in enumerate(operations(UNITS)):
        rank.comm("nccl", 10 * number, 10 * number + 5, kind=kind, ranks=range(4), size=4 * size)
    group = ProcessGroup(
        name="0",
        description="mesh_dp_shard",
        ranks=(0, 1, 2, 3),
        size=4,
        backend="nccl",
        axis=MeshAxis.DP_SHARD,
    )
    run = make_run([rank.rank()], groups=[group])
    nodes = {"node0": (0, 1, 2, 3)}
    run = replace(run, topology=replace(run.topology, nodes=nodes))
    analyses = RankAnalyses.of([measured(rank, axis=["dp_shard"] * 12)])
    (axis,) = analyze_sharding(run, analyses, profile(device)).axes
    assert axis.latency_ns_per_gather == start_up  # three steps of a ring of four
    assert axis.num_nodes == 1


def profile(device: str) -> FabricFile:
    fit = FabricFit(
        alpha_ns=5_000.0,
        alpha_low_ns=4_000.0,
        alpha_high_ns=6_000.0,
        bandwidth_bytes_per_s=1e9,
        bandwidth_low_bytes_per_s=9e8,
        bandwidth_high_bytes_per_s=1.1e9,
        num_steps=3,
        algorithm="ring",
        crossover_bytes=15_000,
        residual_ratio=0.01,
        worst_ratio=0.02,
        worst_bytes=1_024,
    )
    curve = FabricCurve(kind="all_gather", group_size=4, tier="node", points=(), fit=fit)
    return FabricFile(
        origin="distprof bench",
        source="",
        device=device,
        backend="nccl",
        world_size=4,
        curves=(curve,),
    )
