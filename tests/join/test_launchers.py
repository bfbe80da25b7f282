"""Nodes by the variables of SLURM, torchrun, Kubernetes operators and Open MPI."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.join.topology import nodes_of_launcher, parse_hostlist, parse_task_counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ("n1",)),
        ("n[001-003,7],x", ("n001", "n002", "n003", "n7", "x")),
        (
            "rack[1-2]-n[08-10]",
            ("rack1-n08", "rack1-n09", "rack1-n10", "rack2-n08", "rack2-n09", "rack2-n10"),
        ),
        ("a-b.example.org,c", ("a-b.example.org", "c")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("", ()),
        ("n[", ()),
        ("n[3-1]", ()),
        ("n[a-b]", ()),
        ("n[1-2", ()),
        ("n]1[", ()),
        ("a,,b", ()),
        ("n[1-999999999]", ()),
        ("n[1-60000]m[1-60000]", ()),
    ],
)
def test_hostlists_are_read_and_nonsense_is_nothing(text, hosts):
    assert parse_hostlist(text) == hosts


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", (8,)),
        ("8(x4),2", (8, 8, 8, 8, 2)),
        ("", ()),
        ("8(x)", ()),
        ("-1", ()),
        ("1(x999999)", ()),
    ],
)
def test_task_counts_are_read_and_nonsense_is_nothing(text, counts):
    assert parse_task_counts(text) == counts


def written(hosts: list[tuple[str, list[int], int]]) -> tuple[str, list[str]]:
    """A hostlist in brackets, and its hosts one by one."""
    parts, names = [], []
    for prefix, starts, width in hosts:
        ranges = [f"{start:0{width}d}-{start + 2:0{width}d}" for start in starts]
        parts.append(f"{prefix}[{','.join(ranges)}]")
        names += [
            f"{prefix}{number:0{width}d}" for start in starts for number in range(start, start + 3)
        ]
    return ",".join(parts), names


groups = st.tuples(
    st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True),
    st.lists(st.integers(0, 9_000), min_size=1, max_size=4),
    st.integers(1, 5),
)


@given(st.lists(groups, min_size=1, max_size=4))
def test_what_is_written_as_a_hostlist_is_read_back(hosts):
    text, names = written(hosts)
    assert list(parse_hostlist(text)) == names


@given(st.text(alphabet="n01-,[]x ", max_size=30))
def test_any_text_is_a_list_of_hosts_or_nothing(text):
    assert all(host and "[" not in host for host in parse_hostlist(text))


SLURM = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


def test_slurm_tasks_are_ranks_node_by_node():
    assert nodes_of_launcher(SLURM, 4) == {"n1": (0, 1), "n2": (2, 3)}


def test_slurm_may_deal_ranks_out_in_turn():
    env = {**SLURM, "SLURM_DISTRIBUTION": "cyclic:block", "SLURM_TASKS_PER_NODE": "3,1"}
    assert nodes_of_launcher(env, 4) == {"n1": (0, 2, 3), "n2": (1,)}


def test_an_order_that_is_not_told_is_not_guessed():
    assert nodes_of_launcher({**SLURM, "SLURM_DISTRIBUTION": "plane=2"}, 4) == {}


def test_one_agent_per_node_under_slurm_starts_blocks_of_ranks():
    env = {**SLURM, "SLURM_TASKS_PER_NODE": "1(x2)", "LOCAL_WORLD_SIZE": "4"}
    assert nodes_of_launcher(env, 8) == {"node0": (0, 1, 2, 3), "node1": (4, 5, 6, 7)}


def test_a_steps_own_nodes_come_before_the_jobs():
    env = {**SLURM, "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    assert nodes_of_launcher(env, 2) == {"n2": (0, 1)}


@pytest.mark.parametrize(
    "env",
    [
        {"LOCAL_WORLD_SIZE": "2"},
        {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    ],
)
def test_launchers_that_number_ranks_in_blocks(env):
    assert nodes_of_launcher(env, 4) == {"node0": (0, 1), "node1": (2, 3)}


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LOCAL_WORLD_SIZE": "3"},
        {"LOCAL_WORLD_SIZE": "auto"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "3"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_rmaps_base_mapping_policy": "node"},
        {"SLURM_JOB_NODELIST": "n1,n1", "SLURM_TASKS_PER_NODE": "2(x2)"},
    ],
)
def test_numbers_that_do_not_fit_tell_nothing(env):
    assert nodes_of_launcher(env, 4) == {}


def test_a_world_of_unknown_size_tells_nothing():
    assert nodes_of_launcher(SLURM, None) == {}
