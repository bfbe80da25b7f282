"""Ranks and groups on nodes, domains and cards, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.config import TopologyConfig
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.hardware import load_sheet
from distprof.ingest.kinds.machine import parse_machines
from distprof.run.logs import NcclCard, NcclCommunicator, NcclEdge, NcclLog, NcclMember, NcclProcess
from distprof.run.run import Device, Run
from distprof.run.topology import ProcessGroup
from distprof.sections.collectives import CollectivesResult
from distprof.sections.placement import PlacedAxis, PlacementResult
from distprof.sections.placement.measure import analyze_placement
from distprof.terms import MeshAxis
from tests.builders import RankBuilder, make_run
from tests.rules.samples import collective_class

GOLDEN = Path(__file__).parents[1] / "golden"
NOTHING = CollectivesResult(num_ranks=0, num_steps=0, classes=())


def group(axis: MeshAxis, *ranks: int) -> ProcessGroup:
    return ProcessGroup(
        name="", description=f"mesh_{axis}", ranks=ranks, size=len(ranks), backend="nccl", axis=axis
    )


def mesh(outer: int, inner: int) -> list[ProcessGroup]:
    """Groups of a mesh dp × tp."""
    rows = [tuple(range(i * inner, (i + 1) * inner)) for i in range(outer)]
    columns = [tuple(range(i, outer * inner, inner)) for i in range(inner)]
    return [group(MeshAxis.TP, *row) for row in rows] + [group(MeshAxis.DP, *c) for c in columns]


def job(nodes: Mapping[str, tuple[int, ...]], *groups: ProcessGroup, device: str = "") -> Run:
    size = sum(len(ranks) for ranks in nodes.values())
    ranks = [RankBuilder(0).rank(device=Device(name=device))] if device else []
    run = make_run(ranks, groups=groups, world_size=size)
    return replace(run, topology=replace(run.topology, nodes=nodes))


def blocks(number: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"n{i}": tuple(range(i * size, (i + 1) * size)) for i in range(number)}


def axis(result: PlacementResult, name: str) -> PlacedAxis:
    (found,) = [one for one in result.axes if one.axis == name]
    return found


def test_a_mesh_that_fits_has_its_inner_axis_inside_nodes():
    result = analyze_placement(job(blocks(2, 4), *mesh(2, 4)), NOTHING)
    tp, dp = axis(result, "tp"), axis(result, "dp")
    assert result.order == "blocked"
    assert result.is_whole
    assert (tp.num_nodes, tp.num_domains, tp.stride, tp.tier) == (1, 1, 1, "inside a node")
    assert (tp.most_on_node, tp.least_on_node, tp.num_groups) == (4, 4, 2)
    assert (dp.num_nodes, dp.most_on_node, dp.stride, dp.tier) == (2, 1, 4, "between domains")
    assert tp.could_fit
    assert dp.could_fit is False


def test_a_size_that_does_not_divide_a_node_straddles_two():
    groups = [group(MeshAxis.TP, *range(i, i + 4)) for i in (0, 4, 8)]
    tp = axis(analyze_placement(job(blocks(2, 6), *groups), NOTHING), "tp")
    assert (tp.least_nodes, tp.num_nodes) == (1, 2)
    assert (tp.least_domains, tp.num_domains) == (1, 2)
    assert (tp.most_on_node, tp.least_on_node) == (4, 2)
    assert tp.could_fit
    assert tp.ranks == (4, 5, 6, 7)


def test_ranks_in_turn_are_cyclic_and_what_blocks_would_give_is_told():
    nodes = {"a": (0, 2, 4, 6), "b": (1, 3, 5, 7)}
    result = analyze_placement(job(nodes, *mesh(2, 4)), NOTHING)
    assert result.order == "cyclic"
    assert (axis(result, "tp").num_nodes, axis(result, "tp").nodes_if_blocked) == (2, 1)
    assert (axis(result, "dp").num_nodes, axis(result, "dp").nodes_if_blocked) == (1, 2)


def test_any_other_order_is_irregular_and_of_some_ranks_it_is_not_told():
    mixed = {"a": (0, 1, 2, 5), "b": (3, 4, 6, 7)}
    assert analyze_placement(job(mixed), NOTHING).order == "irregular"
    some = job({"a": (0, 1), "b": (4, 5)})
    result = analyze_placement(some, NOTHING)
    assert result.order is None
    assert not result.is_whole


def test_the_first_half_of_a_job_is_not_the_whole():
    run = job(blocks(2, 2))
    half = replace(run, topology=replace(run.topology, world_size=8))
    result = analyze_placement(half, NOTHING)
    assert (result.is_whole, result.order) == (False, None)


def test_groups_with_members_on_unknown_nodes_are_left_out():
    run = job({"a": (0, 1), "b": (2, 3)}, group(MeshAxis.DP, 0, 9), group(MeshAxis.TP, 0, 1))
    assert [one.axis for one in analyze_placement(run, NOTHING).axes] == ["tp"]


def test_without_nodes_nothing_is_placed_and_that_is_said():
    result = analyze_placement(job({}, *mesh(2, 4)), NOTHING)
    assert result.axes == ()
    assert result.unavailable == ("The nodes of the ranks are unknown.",)
    assert result.unplaced == ("dp", "tp")


def test_the_domain_of_a_rack_spans_hosts_by_the_devices_name():
    run = job(blocks(18, 4), group(MeshAxis.TP, *range(8)), device="NVIDIA GB200")
    result = analyze_placement(run, NOTHING, sheet=load_sheet())
    assert (result.num_domains, result.domain_size) == (1, 72)
    assert axis(result, "tp").tier == "inside a domain"
    assert result.unavailable == ()


def test_nodes_beyond_one_rack_share_domains_by_their_order_and_that_is_said():
    run = job(blocks(20, 4), device="NVIDIA GB200")
    result = analyze_placement(run, NOTHING, sheet=load_sheet())
    assert (result.num_domains, result.domain_size) == (2, 72)
    assert "assumed" in result.unavailable[0]


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"])
def test_a_node_is_the_domain_of_devices_that_span_no_hosts(device):
    result = analyze_placement(job(blocks(4, 4), device=device), NOTHING, sheet=load_sheet())
    assert (result.num_domains, result.domain_size) == (4, 4)
    assert result.scale_up_bandwidth is not None
    assert result.unavailable == ()


def test_a_device_that_nobody_knows_leaves_nodes_and_that_is_said():
    result = analyze_placement(job(blocks(2, 4), device="ACME X1"), NOTHING, sheet=load_sheet())
    assert (result.num_domains, result.domain_origin) == (2, "nodes")
    assert "of ACME X1 are unknown" in result.unavailable[0]


@pytest.mark.parametrize(
    ("size", "domains"),
    [
        (2, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (8, [tuple(range(8))]),
        (6, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_the_configuration_splits_and_joins_nodes(size, domains):
    config = TopologyConfig(gpus_per_domain=size)
    run = job(blocks(2, 4), *(group(MeshAxis.TP, *ranks) for ranks in domains))
    result = analyze_placement(run, NOTHING, config)
    assert result.num_domains == len(domains)
    assert axis(result, "tp").num_domains == 1
    assert result.domain_origin == "the configuration"


def test_the_configuration_names_domains_by_their_nodes():
    config = TopologyConfig(domains={"rack": ("n0", "n2*")})
    result = analyze_placement(job(blocks(3, 2)), NOTHING, config)
    assert {node.node: node.domains for node in result.nodes} == {
        "n0": ("rack",), "n1": ("n1",), "n2": ("rack",)
    }  # fmt: skip


def test_traffic_is_that_of_the_axis_and_the_size():
    tp = {"axis": "tp", "group_size": 4}
    exchange = {"exposed_ns_per_step": 9, "exposed_wait_ns_per_step": 4}
    classes = (
        collective_class(
            **tp, sent_bytes_per_step=3.0, exposed_ns_per_step=50, exposed_wait_ns_per_step=20
        ),
        collective_class(**tp, kind="all_to_all", sent_bytes_per_step=2.0, **exchange),
        collective_class(axis="tp", group_size=2, sent_bytes_per_step=100.0),
        collective_class(axis="dp", group_size=4, exposed_wait_ns_per_step=None),
    )
    collectives = CollectivesResult(num_ranks=8, num_steps=1, classes=classes)
    found = axis(analyze_placement(job(blocks(2, 4), *mesh(2, 4)), collectives), "tp")
    assert found.sent_bytes_per_step == 5.0
    assert found.exposed_transfer_ns_per_step == 35
    assert found.exchange_ns_per_step == 5


def test_what_was_not_split_into_waiting_and_transfer_is_not_known():
    one = collective_class(axis="tp", group_size=4, exposed_wait_ns_per_step=None)
    collectives = CollectivesResult(num_ranks=8, num_steps=1, classes=(one,))
    tp = axis(analyze_placement(job(blocks(2, 4), *mesh(2, 4)), collectives), "tp")
    assert tp.exposed_transfer_ns_per_step is None


@given(st.permutations(range(12)), st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]))
def test_names_of_nodes_and_order_of_groups_change_nothing(order, shape):
    nodes = blocks(3, 4)
    groups = mesh(*shape)
    shuffled = [groups[i % len(groups)] for i in order] + groups
    renamed = {f"x{12 - i}": ranks for i, ranks in enumerate(nodes.values())}
    expected = analyze_placement(job(nodes, *groups), NOTHING)
    found = analyze_placement(job(renamed, *shuffled), NOTHING)
    assert found.axes == expected.axes
    assert found.order == expected.order == "blocked"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 9))
def test_every_rank_is_in_exactly_one_domain(sizes, domain):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = {
        f"n{i}": tuple(range(a, a + n)) for i, (a, n) in enumerate(zip(starts, sizes, strict=True))
    }
    result = analyze_placement(job(nodes), NOTHING, TopologyConfig(gpus_per_domain=domain))
    assert result.domain_size is not None
    assert result.domain_size <= domain
    assert all(node.domains for node in result.nodes)
    assert sum(sizes) <= domain * (result.num_domains or 0)


# NCCL's log ---------------------------------------------------------------------------------------


def log(*, cards: bool = True, device: int | None = None) -> NcclLog:
    """Two hosts of two processes; one communicator of all, one inside each host."""
    processes = tuple(NcclProcess(host=f"node-{1 + p // 2}", pid=p) for p in range(4))

    def one(*ranks: int) -> NcclCommunicator:
        members = tuple(
            NcclMember(rank=i, process=p, device=p % 2 if device is None else device)
            for i, p in enumerate(ranks)
        )
        return NcclCommunicator(name=str(ranks), num_ranks=len(ranks), members=members)

    found = tuple(
        NcclCard(host=f"node-{n}", network="IB", index=i, name=f"mlx5_{i}:1", link="RoCE")
        for n in (1, 2)
        for i in (0, 1)
    )
    edges = tuple(
        NcclEdge(
            communicator=0, process=p, source=p, target=(p + 2) % 4, transport="NET/IB",
            has_gdr=True, card=0, direction="send", num_lines=1,
        )
        for p in range(4)
    )  # fmt: skip
    return NcclLog(
        processes=processes,
        communicators=(one(0, 1, 2, 3), one(0, 1), one(2, 3)),
        cards=found if cards else (),
        edges=edges,
    )


TOPO = """\
node-1
\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV18\tPIX\tSYS\t0-15
GPU1\tNV18\t X \tSYS\tPIX\t16-31
"""


def test_nodes_and_groups_of_a_log_alone():
    result = analyze_placement(job({}).having(log()), NOTHING)
    assert result.origin == "NCCL's log"
    assert [(node.node, node.ranks) for node in result.nodes] == [
        ("node-1", (0, 1)),
        ("node-2", (2, 3)),
    ]
    assert {(one.axis, one.size, one.num_nodes) for one in result.axes} == {
        ("world", 4, 2), ("communicators of ranks 1 apart", 2, 1)
    }  # fmt: skip


def test_a_card_farther_than_the_nearest_is_told_gpu_by_gpu():
    run = job({}).having(log()).having(parse_machines(TOPO))
    first, second = analyze_placement(run, NOTHING).cards
    assert (first.nearest, first.path, first.used, first.used_path) == (
        ("mlx5_0",),
        "PIX",
        ("mlx5_0",),
        "PIX",
    )
    assert (second.nearest, second.path, second.used, second.used_path) == (
        ("mlx5_1",),
        "PIX",
        ("mlx5_0",),
        "SYS",
    )
    assert (first.num_sharing, second.num_sharing) == (1, 1)


def test_processes_that_all_call_their_gpu_the_first_tell_no_used_card():
    run = job({}).having(log(device=0)).having(parse_machines(TOPO))
    assert [card.used for card in analyze_placement(run, NOTHING).cards] == [(), ()]


def test_a_machine_that_is_not_of_the_job_is_left_out():
    run = job(blocks(2, 2)).having(parse_machines(TOPO))
    result = analyze_placement(run, NOTHING)
    assert result.cards == ()
    assert [machine.host for machine in result.machines] == ["node-1"]


def test_gpus_that_nvlink_does_not_join_are_said():
    text = TOPO.replace("NV18", "PHB")
    result = analyze_placement(job({}).having(log()).having(parse_machines(text)), NOTHING)
    assert (
        "NVLink does not connect all 2 GPUs of node-1: PCIe connects 2 islands."
        in result.unavailable
    )


# Whole reports ------------------------------------------------------------------------------------


def test_a_real_job_on_two_hosts_by_its_log_and_a_matrix():
    report = distprof.analyze(
        distprof.open_run(
            GOLDEN / "nccl" / "2.18.5-h200-2node-16gpu-forced-ring.txt.gz",
            evidence=[GOLDEN / "machine" / "topo-m-8xh200-roce.txt"],
        ),
        debug=True,
    )
    placement = report.placement
    assert (placement.order, placement.num_domains, placement.domain_size) == ("blocked", 2, 8)
    assert placement.domain_origin.startswith("NVLink, from nvidia-smi")
    assert [(one.size, one.num_groups, one.num_nodes) for one in placement.axes] == [
        (8, 2, 1),
        (16, 1, 2),
    ]
    assert len(placement.cards) == 8
    text = REPORT.reporter("text")(report, RenderOptions(full=True))
    assert "Groups on nodes" in text
    assert "rocep145s0" in text


def test_a_matrix_alone_is_a_report():
    report = distprof.analyze(GOLDEN / "machine" / "topo-m-8xh200-roce.txt", debug=True)
    assert str(report).startswith("8 GPUs, all connected by NVLink; 8 network cards\n")
    assert report.findings == ()


def test_groups_of_a_real_mesh_on_one_node():
    report = distprof.analyze(GOLDEN / "job" / "gloo-hsdp-4ranks", debug=True)
    assert {one.axis: one.tier for one in report.placement.axes} == {
        "dp_replicate": "inside a node", "dp_shard": "inside a node", "world": "inside a node"
    }  # fmt: skip
