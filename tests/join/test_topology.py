"""Nodes, groups and world size."""

import pytest

from distprof.artefacts.run_file import RankEntry, RunFile
from distprof.join.topology import build_topology, groups_of_rows, parse_folded
from distprof.run.run import Device
from distprof.terms import MeshAxis
from tests.simulator.by_hand import collective, group, rank_by_hand


def ranks_of(world: int, **fields):
    return [rank_by_hand(n, [], world_size=world, **fields) for n in range(world)]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("5", (5,)),
        ("8,0-1", (0, 1, 8)),
        ("", ()),
        ("3-1", ()),
        ("a", ()),
        ("1,", ()),
        ("-1", ()),
        ("0-99999999999", ()),
    ],
)
def test_folded_ranks_are_read_and_nonsense_is_nothing(text, ranks):
    assert parse_folded(text) == ranks


def test_nodes_come_from_host_names_first():
    ranks = [
        rank_by_hand(n, [], host=h, device=Device(name="g", count=8)) for n, h in enumerate("ba")
    ]
    topology = build_topology(ranks)
    assert topology.nodes == {"b": (0,), "a": (1,)}
    assert topology.node_origin == "host_name"


def test_a_rank_without_host_name_is_in_no_node():
    topology = build_topology([rank_by_hand(0, [], host="a"), rank_by_hand(1, [])])
    assert topology.nodes == {"a": (0,)}
    assert topology.node_of(1) is None


def test_a_world_no_larger_than_a_host_is_one_node():
    topology = build_topology(ranks_of(4, device=Device(name="g", count=8)))
    assert topology.nodes == {"node0": (0, 1, 2, 3)}
    assert topology.node_origin == "device_count"


def test_ranks_are_numbered_node_by_node_where_hosts_are_unknown():
    topology = build_topology(ranks_of(4, device=Device(name="g", count=2)))
    assert topology.nodes == {"node0": (0, 1), "node1": (2, 3)}


@pytest.mark.parametrize("count", [1, 3, None])
def test_device_counts_that_tell_nothing_leave_nodes_unknown(count):
    """One visible device per process is what containers show; 3 does not divide 4."""
    topology = build_topology(ranks_of(4, device=Device(name="g", count=count)))
    assert topology.nodes == {}
    assert topology.node_origin == "unknown"


def test_groups_of_all_ranks_are_merged_by_name_and_members():
    """After splitting, several groups share a name."""
    a, b = group("1", 0, 1), group("1", 2, 3)
    world = group("0", 0, 1, 2, 3)
    members = [(world, a), (world, a), (world, b), (world, b)]
    ranks = [rank_by_hand(n, [], groups=g, world_size=4) for n, g in enumerate(members)]
    assert build_topology(ranks).groups == (world, a, b)


def test_groups_that_only_collectives_name_are_found():
    row = collective(0, 1, group="7", group_desc="mesh_tp", group_ranks="0-1", group_size=2, seq=1)
    (found,) = build_topology([rank_by_hand(0, [row], world_size=4)]).groups
    assert (found.name, found.ranks, found.axis) == ("7", (0, 1), MeshAxis.TP)


def test_members_missing_on_a_collective_are_those_of_the_ranks_group_of_that_name():
    """PyTorch abbreviates long lists of ranks on kernels, not in the metadata."""
    listed = group("1", *range(40))
    row = collective(0, 1, group="1", group_size=40)
    rank = rank_by_hand(0, [row], groups=(listed,), world_size=80)
    assert groups_of_rows(rank, 80)[0] == (listed,)


def test_collectives_without_any_group_are_taken_for_the_world():
    rank = rank_by_hand(0, [collective(0, 1)], world_size=2)
    ((found,), index) = groups_of_rows(rank, 2)
    assert (found.ranks, found.axis, index.tolist()) == ((0, 1), MeshAxis.WORLD, [0])


def test_world_size_is_what_most_ranks_say():
    sizes = [8, 8, 4, None]
    ranks = [rank_by_hand(n, [], world_size=size) for n, size in enumerate(sizes)]
    assert build_topology(ranks).world_size == 8
    assert build_topology([rank_by_hand(0, [], world_size=None)]).world_size is None


SLURM = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


def job_with(environment, *entries):
    return RunFile(
        distprof_version="0",
        kind="capture",
        command=(),
        started_ns=0,
        world_size=4,
        environment=environment,
        ranks=entries,
    )


def test_a_launchers_variables_tell_nodes_before_device_counts_do():
    ranks = ranks_of(4, device=Device(name="g", count=4))
    topology = build_topology(ranks, job_with(SLURM))
    assert topology.nodes == {"n1": (0, 1), "n2": (2, 3)}
    assert topology.node_origin == "launcher"


def test_what_ranks_say_of_their_nodes_and_hosts_comes_before_the_launcher():
    entries = [RankEntry(rank=n, node=n, host=f"h{n}") for n in range(4)]
    assert build_topology(ranks_of(4), job_with(SLURM, *entries)).node_origin == "run.json"
    hosts = [rank_by_hand(n, [], world_size=4, host="a") for n in range(4)]
    assert build_topology(hosts, job_with(SLURM)).node_origin == "host_name"


def test_variables_that_tell_nothing_leave_what_is_known():
    ranks = ranks_of(4, device=Device(name="g", count=2))
    assert build_topology(ranks, job_with({})).node_origin == "device_count"
