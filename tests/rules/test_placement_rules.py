"""Rules on placement, from meshes on nodes: the right one of them, and none on what is right."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.config import TopologyConfig
from distprof.rules import all_rules
from distprof.rules.engine import run_rules
from distprof.run.topology import ProcessGroup
from distprof.sections.collectives import CollectivesResult
from distprof.sections.moe import MoeResult
from distprof.sections.placement import PlacementResult
from distprof.sections.placement.measure import analyze_placement
from distprof.terms import MeshAxis
from tests.builders import make_run
from tests.rules.samples import MS, collective_class, healthy

CODES = ("COM108", "COM109", "NET106", "NET107", "NET108", "NET109", "NET110")
RULES = [rule for rule in all_rules() if rule.code in CODES]

Mesh = Mapping[str, int]


def groups_of(mesh: Mesh) -> list[ProcessGroup]:
    """Process groups of a mesh, slowest varying axis first."""
    names, sizes = list(mesh), list(mesh.values())
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    found = []
    for number, name in enumerate(names):
        others = [range(size) if i != number else range(1) for i, size in enumerate(sizes)]
        for corner in product(*others):
            start = sum(index * stride for index, stride in zip(corner, strides, strict=True))
            ranks = tuple(start + index * strides[number] for index in range(sizes[number]))
            found.append(
                ProcessGroup(
                    name="",
                    description=f"mesh_{name}",
                    ranks=ranks,
                    size=len(ranks),
                    backend="nccl",
                    axis=MeshAxis(name),
                )
            )
    return found


def placed(
    mesh: Mesh,
    per_node: int,
    *,
    is_cyclic: bool = False,
    domain: int | None = None,
    exposed: Mapping[str, int] | None = None,
    sent: Mapping[str, float] | None = None,
) -> PlacementResult:
    """A mesh on nodes; each axis exposes 3 ms of transfer unless said, in all-to-alls too."""
    world = prod(mesh.values())
    number = -(-world // per_node)
    nodes = {
        f"n{n}": tuple(
            range(n, world, number)
            if is_cyclic
            else range(n * per_node, min(world, (n + 1) * per_node))
        )
        for n in range(number)
    }
    run = make_run([], groups=groups_of(mesh), world_size=world)
    run = replace(run, topology=replace(run.topology, nodes=nodes))
    times = exposed or {}
    classes = tuple(
        collective_class(
            kind="all_to_all" if name == "ep" else "all_reduce",
            axis=name,
            group_size=size,
            exposed_ns_per_step=times.get(name, 3 * MS),
            exposed_wait_ns_per_step=0,
            sent_bytes_per_step=(sent or {}).get(name, 1e6),
        )
        for name, size in mesh.items()
    )
    collectives = CollectivesResult(num_ranks=world, num_steps=5, classes=classes)
    return analyze_placement(run, collectives, TopologyConfig(gpus_per_domain=domain))


def codes(placement: PlacementResult) -> list[str]:
    results = {**healthy(exposed_transfer=4.0, communication_ms=30.0), PlacementResult: placement}
    outcome = run_rules(results.values(), rules=RULES, debug=True)
    assert outcome.not_checked == ()
    return [finding.code for finding in outcome.findings]


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_meshes_as_they_should_be_are_silent_whatever_they_expose(pp, replicas, shards, cp, tp):
    mesh = {"pp": pp, "dp_replicate": replicas, "dp_shard": shards, "cp": cp, "tp": tp}
    if cp * tp <= 8:
        assert codes(placed(mesh, 8)) == []


@pytest.mark.parametrize(
    ("mesh", "per_node", "expected"),
    [
        ({"dp": 2, "tp": 16}, 8, ["COM108"]),  # too large
        ({"dp": 3, "tp": 4}, 6, ["COM108"]),  # would fit, and straddles: no second finding
        ({"tp": 4, "dp": 4}, 8, ["NET108"]),  # replicas inside, layers between nodes
        ({"tp": 2, "pp": 4}, 4, ["NET108"]),
        ({"dp_shard": 2, "dp_replicate": 4}, 4, ["NET108"]),  # replicas inside, shards between
        ({"pp": 2, "dp": 4}, 4, []),  # stages between nodes are as they should be
        ({"dp_replicate": 8, "dp_shard": 3}, 4, ["NET106"]),
        ({"dp_replicate": 2, "dp_shard": 4}, 4, []),
        ({"ep": 16}, 8, ["COM109"]),
        ({"ep": 2, "dp": 8}, 8, ["NET108"]),  # experts between nodes, replicas inside
        ({"dp": 2, "cp": 16}, 8, ["COM108"]),
        ({"cp": 4, "dp": 2, "tp": 4}, 8, ["COM108"]),  # no room for it in the place of replicas
        ({"dp": 12}, 8, ["NET110"]),
        ({"pp": 3, "tp": 4}, 8, ["NET110"]),
    ],
)
def test_one_problem_is_one_finding(mesh, per_node, expected):
    assert codes(placed(mesh, per_node)) == expected


def test_ranks_in_turn_are_named_instead_of_each_group_that_they_tear_apart():
    assert codes(placed({"dp": 2, "cp": 2, "tp": 2}, 4, is_cyclic=True)) == ["NET107"]


def test_any_other_order_is_not_called_in_turn():
    right = placed({"dp": 2, "tp": 4}, 4)
    tp = next(axis for axis in right.axes if axis.axis == "tp")
    torn = msgspec.structs.replace(
        tp, num_nodes=2, num_domains=2, most_on_node=3, least_on_node=1, ranks=(0, 1, 2, 5)
    )
    assert codes(msgspec.structs.replace(right, order="irregular", axes=(torn,))) == ["COM108"]


def test_a_domain_of_several_hosts_holds_what_a_node_does_not():
    mesh = {"dp": 9, "tp": 8}
    assert codes(placed(mesh, 4)) == ["COM108"]
    assert codes(placed(mesh, 4, domain=72)) == []


def test_an_axis_that_exposes_little_is_not_worth_naming():
    assert codes(placed({"dp": 2, "tp": 16}, 8, exposed={"tp": MS // 10})) == []
    assert codes(placed({"tp": 4, "dp": 4}, 8, exposed={"tp": MS // 10})) == []
    assert codes(placed({"ep": 16}, 8, exposed={"ep": MS})) == []


def test_an_inner_axis_that_sends_more_stays_unless_tensor_parallelism_is_outside():
    sent = {"dp": 1e9, "dp_replicate": 1e9}
    assert codes(placed({"tp": 4, "dp": 4}, 8, sent=sent)) == ["NET108"]
    assert codes(placed({"dp_shard": 2, "dp_replicate": 4}, 4, sent=sent)) == []


def test_without_nodes_they_say_what_they_lack():
    assert unchecked("tp", "ep", "world") == set(CODES) - {"NET109"}
    assert unchecked("tp", "world") == {"COM108", "NET106", "NET107", "NET108", "NET110"}
    assert unchecked("world") == {"NET110"}
    assert unchecked() == set()


def unchecked(*axes: str) -> set[str]:
    """Rules that say that nodes are not known, in a job with groups of these axes."""
    results = {**healthy(), PlacementResult: PlacementResult(unplaced=axes)}
    results[MoeResult] = MoeResult()
    outcome = run_rules(results.values(), rules=RULES)
    assert outcome.findings == ()
    assert all("node" in skipped.why for skipped in outcome.not_checked)
    return {skipped.code for skipped in outcome.not_checked}


def test_time_that_is_not_split_leaves_them_unchecked():
    placement = placed({"dp": 2, "tp": 16}, 8)
    unsplit = tuple(
        msgspec.structs.replace(axis, exposed_transfer_ns_per_step=None) for axis in placement.axes
    )
    results = {**healthy(), PlacementResult: PlacementResult(nodes=placement.nodes, axes=unsplit)}
    outcome = run_rules(results.values(), rules=RULES)
    assert [(s.code, "cannot be separated" in s.why) for s in outcome.not_checked] == [
        ("COM108", True)
    ]
