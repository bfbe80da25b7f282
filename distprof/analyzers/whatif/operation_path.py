"""What a logged step waited for: the critical path through its operations."""

from __future__ import annotations

from collections import defaultdict

from distprof.analyzers.whatif.analysis import PathShare
from distprof.analyzers.whatif.operation_replay import OperationReplay
from distprof.analyzers.whatif.operation_rows import KINDS
from distprof.replay import critical_path

__all__ = ["path_shares"]

MAX_ROWS = 64
MAX_CELLS = 4_000_000
"""Operations times steps whose paths are followed; of larger logs, steps at equal distances."""

_COMPUTE = ("forward-compute", "backward-compute", "optimizer")

Key = tuple[int | None, str, str]


def path_shares(replay: OperationReplay) -> tuple[PathShare, ...]:
    """Time on the critical path by worker and kind of operation, mean per step, largest first."""
    every = max(1, -(-len(replay.rows) * replay.num_steps // MAX_CELLS))
    steps = range(0, replay.num_steps, every)
    total: dict[Key, int] = defaultdict(int)
    for step in steps:
        for key, ns in _of_step(replay, step).items():
            total[key] += ns
    whole = sum(total.values())
    if whole <= 0:
        return ()
    ordered = sorted(total.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(
        PathShare(
            rank=rank,
            kind=kind,
            name=name,
            ns_per_step=round(ns / len(steps)),
            share_ratio=ns / whole,
        )
        for (rank, kind, name), ns in ordered[:MAX_ROWS]
        if ns > 0
    )


def _of_step(replay: OperationReplay, step: int) -> dict[Key, int]:
    """One step as simulated: on its path each operation starts when the one before ends."""
    times = replay.times(step)
    path = critical_path(replay.graph.graph, times)
    path = path[path < len(replay.rows)]  # meetings take no time
    length = times.end[path] - times.start[path]
    shares: dict[Key, int] = defaultdict(int)
    for node, ns in zip(path.tolist(), length.tolist(), strict=True):
        shares[_key(replay, node)] += ns
    return shares


def _key(replay: OperationReplay, node: int) -> Key:
    kind = KINDS[replay.rows.kind[node]]
    rank = int(replay.rows.rank[node])
    if kind in _COMPUTE:
        return rank, "compute", kind
    if kind == "gc":
        return rank, "other", kind
    return (None if replay.graph.group[node] >= 0 else rank), "transfer", kind
