"""A process group that many ranks know is one object, so that a run takes memory by ranks."""

from __future__ import annotations

import gc
import pickle

import msgspec
import pytest

from distprof.join import topology
from distprof.join.instances import _group_index
from distprof.join.topology import build_topology
from distprof.run.run import Rank
from distprof.run.topology import ProcessGroup, Topology, shared_group
from distprof.run.topology import _groups as kept_groups
from distprof.terms import MeshAxis
from tests.simulator import SimulatedJob


def group(size: int = 3, name: str = "0") -> ProcessGroup:
    return ProcessGroup(
        name=name,
        description="default_pg",
        ranks=tuple(range(1_000, 1_000 + size)),
        size=size,
        backend="nccl",
        axis=MeshAxis.WORLD,
    )


def test_groups_of_other_processes_are_one() -> None:
    text = pickle.dumps(group())
    first, second = pickle.loads(text), pickle.loads(text)
    assert first == group()
    assert first is second
    assert pickle.loads(pickle.dumps(group(4))) is not first


def test_nothing_is_kept_that_nobody_uses() -> None:
    kept = shared_group(msgspec.json.encode(group(name="gone")))
    text = msgspec.json.encode(kept)
    del kept
    gc.collect()
    assert text not in kept_groups


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        shared_group(b'{"name": 1}')


def ranks_of(num_nodes: int, *, listed: bool) -> list[Rank]:
    job = SimulatedJob(num_nodes=num_nodes, ranks_per_node=4, num_steps=2, seed=1)
    return [
        msgspec.structs.replace(
            rank,
            groups=tuple(shared_group(msgspec.json.encode(g)) for g in rank.groups if listed),
        )
        for rank in job.run().to_ranks()
    ]


@pytest.mark.parametrize("listed", [True, False])
def test_keys_are_made_once_per_group(monkeypatch: pytest.MonkeyPatch, *, listed: bool) -> None:
    """A key is as long as its group, so that one per rank would be quadratic in ranks."""
    made = {}
    key = topology.group_key
    for num_nodes in (2, 8):
        keys: list[int] = []

        def counted(of: ProcessGroup, keys: list[int] = keys) -> topology.GroupKey:
            keys.append(len(of.ranks))
            return key(of)

        monkeypatch.setattr(topology, "group_key", counted)
        monkeypatch.setattr("distprof.join.instances.group_key", counted)
        ranks = ranks_of(num_nodes, listed=listed)
        found = build_topology(ranks)
        _group_index(ranks, found.groups)
        made[num_nodes] = sum(keys)
    assert made[8] <= 4 * made[2] * 1.05


def test_the_first_node_that_holds_a_rank_is_its_node() -> None:
    nodes = {"a": (0, 1), "b": (1, 2)}
    found = Topology(world_size=3, nodes=nodes, node_origin="host_name", groups=())
    assert [found.node_of(rank) for rank in range(4)] == ["a", "a", "b", None]
