"""Axes of groups without a description, by what their members exchange."""

from typing import Any

import pytest

from distprof.join.topology import build_topology
from distprof.run.topology import ProcessGroup
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder

MB = 1_000_000
REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
SCATTER = CollectiveKind.REDUCE_SCATTER

ROWS = ((0, 1), (2, 3))
COLUMNS = ((0, 2), (1, 3))

Exchange = tuple[str, CollectiveKind, int]


def topology_of(step: list[Exchange], num_steps: int = 3, description: str = "") -> Any:
    """Four ranks; each exchanges this in its row or column, in this order, in every step."""
    numbers = {members: str(number) for number, members in enumerate((*ROWS, *COLUMNS), 1)}
    ranks = []
    for number in range(4):
        own = {
            "row": next(members for members in ROWS if number in members),
            "column": next(members for members in COLUMNS if number in members),
        }
        builder = RankBuilder(number, world_size=4)
        for members in own.values():
            builder.member_of(
                ProcessGroup(
                    name=numbers[members],
                    description=description,
                    ranks=members,
                    size=2,
                    backend="gloo",
                    axis=None,
                )
            )
        for index in range(num_steps):
            low = 1_000 * index
            builder.step(index, low, low + 1_000)
            for place, (where, kind, num_bytes) in enumerate(step):
                at = low + 10 + 20 * place
                builder.comm(
                    "gloo",
                    at,
                    at + 10,
                    kind=kind,
                    group=numbers[own[where]],
                    ranks=own[where],
                    size=num_bytes,
                    desc=description,
                )
        ranks.append(builder.rank())
    return build_topology(ranks)


def axes(topology: Any) -> dict[tuple[int, ...], MeshAxis | None]:
    return {group.ranks: group.axis for group in topology.groups if len(group.ranks) == 2}


ACTIVATIONS: list[Exchange] = [("row", REDUCE, MB)] * 6
GRADIENTS: list[Exchange] = [("column", REDUCE, size * MB) for size in (1, 3, 2)]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param([*ACTIVATIONS, *GRADIENTS], id="gradients after backward"),
        pytest.param(
            [*ACTIVATIONS[:4], GRADIENTS[0], ACTIVATIONS[4], GRADIENTS[1], GRADIENTS[2]],
            id="gradients during backward",
        ),
        pytest.param(
            [*ACTIVATIONS, *GRADIENTS, ("row", REDUCE, 4)], id="and a loss, which does not count"
        ),
    ],
)
def test_activations_and_gradients_are_told_apart(step: list[Exchange]) -> None:
    found = axes(topology_of(step))
    assert found == dict.fromkeys(ROWS, MeshAxis.TP) | dict.fromkeys(COLUMNS, MeshAxis.DP)


def test_ranks_far_apart_are_tensor_parallel_where_they_exchange_activations() -> None:
    """It is not the distance of ranks that decides."""
    other = {"row": "column", "column": "row"}
    step = [(other[where], kind, size) for where, kind, size in [*ACTIVATIONS, *GRADIENTS]]
    found = axes(topology_of(step))
    assert found == dict.fromkeys(COLUMNS, MeshAxis.TP) | dict.fromkeys(ROWS, MeshAxis.DP)


def test_shards_are_gathered_before_gradients_are_scattered() -> None:
    step = [*[("row", GATHER, MB)] * 3, *[("row", GATHER, MB), ("row", SCATTER, MB)] * 3]
    assert axes(topology_of(step))[0, 1] is MeshAxis.DP_SHARD


def test_sequence_parallelism_gathers_and_scatters_alternately() -> None:
    step = [("row", GATHER, MB), ("row", SCATTER, MB)] * 4
    assert axes(topology_of(step))[0, 1] is MeshAxis.TP


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(ACTIVATIONS, id="one group alone"),
        pytest.param([*GRADIENTS, *ACTIVATIONS], id="nothing comes before"),
        pytest.param([*GRADIENTS, ("row", REDUCE, MB), ("row", REDUCE, 2 * MB)], id="two sizes"),
        pytest.param([("row", GATHER, MB)] * 4, id="gathers alone"),
    ],
)
def test_what_proves_nothing_stays_unknown(step: list[Exchange]) -> None:
    assert set(axes(topology_of(step)).values()) == {None}


def test_one_step_proves_nothing() -> None:
    assert set(axes(topology_of([*ACTIVATIONS, *GRADIENTS], num_steps=1)).values()) == {None}


def test_a_description_comes_first() -> None:
    found = axes(topology_of([*ACTIVATIONS, *GRADIENTS], description="my_groups"))
    assert set(found.values()) == {None}
