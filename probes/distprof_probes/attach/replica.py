"""Selects the ranks to profile if profiling all is too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from distprof.errors import UsageError
from distprof.terms import MeshAxis

_ALIASES = {"ddp": "dp_replicate", "fsdp": "dp_shard"}
_REPLICAS = (MeshAxis.DP, MeshAxis.DP_REPLICATE, MeshAxis.DP_SHARD)
MAX_RANK = 10_000_000
MOST_RANKS = 1_000_000


def parse_mesh(text: str) -> dict[str, int]:
    """Mesh axes and their sizes, slowest varying first, from ``pp=2,dp=4,tp=2``."""
    known = {axis.value for axis in MeshAxis if axis != MeshAxis.WORLD} | set(_ALIASES)
    mesh: dict[str, int] = {}
    for piece in text.split(","):
        name, _, size = (part.strip() for part in piece.partition("="))
        if name not in known or not size.isdecimal() or int(size) < 1:
            raise UsageError(
                f"--mesh {text}: {piece.strip()!r} is not an axis and its size, as in"
                f" pp=2,dp=4,tp=2; axes are {', '.join(sorted(known))}"
            )
        axis = _ALIASES.get(name, name)
        if axis in mesh:
            raise UsageError(f"--mesh {text}: {axis} appears twice")
        mesh[axis] = int(size)
    return mesh


def parse_ranks(text: str, *, option: str = "--profile-ranks") -> tuple[int, ...]:
    """Ranks, ascending, from ``0-3,8``; UsageError if malformed or more than a million."""
    ranks: set[int] = set()
    for piece in text.split(","):
        low, _, high = (part.strip() for part in piece.partition("-"))
        last = high or low
        if not (low.isdecimal() and last.isdecimal()) or not int(low) <= int(last) <= MAX_RANK:
            or_else = ", all, or replica" if option == "--profile-ranks" else ""
            found = f"{piece.strip()!r} is neither a rank nor a range such as 0-3"
            raise UsageError(f"{option} {text}: {found}{or_else}")
        if len(ranks) + int(last) - int(low) >= MOST_RANKS:
            raise UsageError(f"{option}: {text[:40]!r} names more than {MOST_RANKS:,} ranks")
        ranks.update(range(int(low), int(last) + 1))
    return tuple(sorted(ranks))


def replica_ranks(mesh: dict[str, int]) -> tuple[int, ...]:
    """One whole replica of the model, and one rank of each other replica, ascending.

    The ranks with the same data-parallel index form a replica. Each other replica contributes the
    rank in the position of the first replica's first rank, so that this rank's data-parallel group
    is complete and its collectives can be matched. Sharding (FSDP) is data-parallel too: each of
    its ranks gathers the whole model. The mesh's first axis varies slowest.
    """
    axes = list(mesh)
    strides = _strides(list(mesh.values()))
    chosen: list[int] = []
    for indices in product(*(range(mesh[axis]) for axis in axes)):
        at = dict(zip(axes, indices, strict=True))
        is_first_replica = not any(at[axis] for axis in axes if axis in _REPLICAS)
        is_first_rank = not any(at[axis] for axis in axes if axis not in _REPLICAS)
        if is_first_replica or is_first_rank:
            chosen.append(sum(i * s for i, s in zip(indices, strides, strict=True)))
    return tuple(sorted(chosen))


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
