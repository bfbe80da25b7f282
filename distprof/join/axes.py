"""Infer the mesh axes of process groups without a description from their communication pattern.

The collectives of a rank that is in two such groups reveal the purpose of each:

- *Tensor parallelism* sums activations: all-reduces of one size, starting in the forward pass.
- *Data parallelism* sums gradients: it exchanges nothing before the backward pass, by which time at
  least half of the activations have been exchanged.
- *Sharded data parallelism* gathers all parameters in the forward pass before it scatters the first
  gradient. Tensor parallelism with sequence parallelism gathers and scatters alternately.

Two groups along different axes share one rank. If a rule does not hold in every step, on every rank
with evidence, the axis stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.run.run import Rank
from distprof.run.topology import ProcessGroup, is_unnamed
from distprof.schema import Int64Array
from distprof.terms import CollectiveKind, MeshAxis

SCALARS_BYTES = 4_096
"""Upper limit for losses and norms, which are neither activations nor gradients."""

MIN_STEPS = 2
"""Least number of steps that must agree."""

GroupsOfRows: TypeAlias = Callable[
    [Rank, int | None], tuple[tuple[ProcessGroup, ...], NDArray[np.int32]]
]

_Key: TypeAlias = tuple[str, tuple[int, ...]]


class _Exchanges(msgspec.Struct, frozen=True):
    """Collectives of one rank in one group in one step, in order of time, without scalars."""

    group: ProcessGroup  # The group.
    start_ns: Int64Array  # Start of each collective.
    kind: NDArray[np.int8]  # CollectiveKind of each.
    num_bytes: Int64Array  # Bytes of each.

    def is_only(self, *kinds: CollectiveKind) -> bool:
        """Whether there are collectives, and all are of these kinds."""
        return len(self.kind) > 0 and bool(np.isin(self.kind, kinds).all())

    @property
    def sums_activations(self) -> bool:
        """Whether these are several all-reduces, all of one size."""
        only = self.is_only(CollectiveKind.ALL_REDUCE)
        return only and len(self.kind) > 1 and len(np.unique(self.num_bytes)) == 1

    @property
    def scatters_after(self) -> int:
        """All-gathers before the first reduce-scatter; -1 if there is none or other kinds occur."""
        scatters = np.flatnonzero(self.kind == CollectiveKind.REDUCE_SCATTER)
        both = self.is_only(CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
        return int(scatters[0]) if both and len(scatters) else -1

    @property
    def num_scatters(self) -> int:
        return int((self.kind == CollectiveKind.REDUCE_SCATTER).sum())


def with_inferred_axes(
    groups: Sequence[ProcessGroup],
    ranks: Sequence[Rank],
    world_size: int | None,
    groups_of_rows: GroupsOfRows,
) -> tuple[ProcessGroup, ...]:
    """The groups, with an inferred axis for those without a description."""
    if not any(_is_unknown(group) for group in groups):
        return tuple(groups)
    axes_of_group: dict[_Key, set[MeshAxis | None]] = {}
    for rank in ranks:
        for key, axis in _of_rank(rank, world_size, groups_of_rows).items():
            axes_of_group.setdefault(key, set()).add(axis)
    known = _of_families(groups, {key: _common_axis(axes) for key, axes in axes_of_group.items()})
    return tuple(_with_axis(group, known) for group in groups)


def _is_unknown(group: ProcessGroup) -> bool:
    return group.axis is None and is_unnamed(group) and len(group.ranks) > 1


def _with_axis(group: ProcessGroup, known: Mapping[_Key, MeshAxis | None]) -> ProcessGroup:
    axis = known.get((group.name, group.ranks)) if _is_unknown(group) else None
    return group if axis is None else replace(group, axis=axis)


def _common_axis(axes: Iterable[MeshAxis | None]) -> MeshAxis | None:
    """The common axis; None if the axes differ or one is unknown."""
    found = set(axes)
    return found.pop() if len(found) == 1 else None


def _of_families(
    groups: Sequence[ProcessGroup], known: Mapping[_Key, MeshAxis | None]
) -> dict[_Key, MeshAxis | None]:
    """Axis of each unnamed group: groups of one layout span one axis, or it stays unknown."""
    families: dict[tuple[int, ...], list[_Key]] = {}
    for group in groups:
        if _is_unknown(group):
            apart = tuple(rank - group.ranks[0] for rank in group.ranks)
            families.setdefault(apart, []).append((group.name, group.ranks))
    found: dict[_Key, MeshAxis | None] = {}
    for keys in families.values():
        axis = _common_axis(known[key] for key in keys if key in known)
        found |= dict.fromkeys(keys, axis)
    return found


def _of_rank(
    rank: Rank, world_size: int | None, groups_of_rows: GroupsOfRows
) -> dict[_Key, MeshAxis | None]:
    """Axis of each unnamed group that one rank communicates in, as far as its steps agree."""
    steps = list(_steps(rank, world_size, groups_of_rows))
    by_group: dict[_Key, list[MeshAxis | None]] = {}
    for exchanges in steps:
        for one in exchanges:
            if _is_unknown(one.group):
                key = (one.group.name, one.group.ranks)
                by_group.setdefault(key, []).append(_axis(one, exchanges))
    return {
        key: _common_axis(axes) if len(axes) >= MIN_STEPS else None
        for key, axes in by_group.items()
    }


def _steps(
    rank: Rank, world_size: int | None, groups_of_rows: GroupsOfRows
) -> Iterator[list[_Exchanges]]:
    """The rank's collectives in each complete step, by group."""
    table = rank.collectives
    groups, code = groups_of_rows(rank, world_size)
    at = np.searchsorted(rank.steps["start_ns"], table["start_ns"], side="right") - 1
    counts = (table["bytes"] > SCALARS_BYTES) & (at >= 0)
    whole = np.flatnonzero(rank.steps["complete"])
    for step in whole.tolist():
        inside = counts & (at == step) & (table["start_ns"] < rank.steps["end_ns"][step])
        rows = np.flatnonzero(inside)
        columns = (table["start_ns"][rows], table["kind"][rows], table["bytes"][rows])
        yield [
            _Exchanges(groups[number], *(column[code[rows] == number] for column in columns))
            for number in np.unique(code[rows]).tolist()
        ]


def _axis(one: _Exchanges, exchanges: Sequence[_Exchanges]) -> MeshAxis | None:
    """The axis of a group in one step of a rank, from its own pattern or that of a second group."""
    if one.scatters_after >= 0:
        gathers_first = one.scatters_after >= max(one.num_scatters, 2)
        alternates = one.scatters_after <= 1 < one.num_scatters
        return MeshAxis.DP_SHARD if gathers_first else MeshAxis.TP if alternates else None
    for activations, gradients in permutations(exchanges, 2):
        if one in (activations, gradients) and _are_crossed(activations, gradients):
            return MeshAxis.TP if one is activations else MeshAxis.DP
    return None


def _are_crossed(activations: _Exchanges, gradients: _Exchanges) -> bool:
    """Whether one group sums activations, and the other gradients from the backward pass on."""
    shared = set(activations.group.ranks) & set(gradients.group.ranks)
    if not activations.sums_activations or len(shared) != 1:
        return False
    if not gradients.is_only(CollectiveKind.ALL_REDUCE):
        return False
    before = activations.start_ns < gradients.start_ns.min()
    return 2 * int(before.sum()) >= len(before)
