"""The critical path of a traced run: the chain of operations that its end waited for.

Only what lies on it shortens the run when it gets shorter, and only as long as no other chain is as
long. On the path nobody waits for anybody it could wait for less: waiting stands for what is not
known, collectives that could not be matched and messages whose other end was not seen.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from distprof.replay import Times, critical_path
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import Own
from distprof.sections.whatif.result import PathShare
from distprof.sections.whatif.trace_graph import TraceGraph

__all__ = ["path_shares"]

_Class = tuple[int | None, str, str]  # rank, kind, name

_OWN = {
    Own.COMPUTATION: ("compute", "computation"),
    Own.COPY: ("compute", "copies"),
    Own.HOST: ("launch", "host late"),
    Own.INPUT: ("other", "input"),
    Own.SYNC: ("launch", "synchronising call"),
    Own.OTHER: ("other", "idle"),
}


def path_shares(graph: TraceGraph, times: Times, step_ns: int) -> tuple[PathShare, ...]:
    """The path by rank and class, largest share first; adds up to the step exactly.

    Args:
        graph: The run.
        times: Of its simulation, nothing changed.
        step_ns: Mean simulated step.
    """
    path = critical_path(graph.graph, times, delay=graph.delay_ns)
    if len(path) == 0:
        return ()
    begin = times.start[path]
    length = np.diff(begin, append=times.end[path[-1]])
    total = float(length.sum())
    if total <= 0:
        return ()
    found: dict[_Class, float] = defaultdict(float)
    is_segment = path < graph.num_segments
    _add_own(graph, path[is_segment], length[is_segment], found)
    _add_transfers(graph, path[~is_segment] - graph.num_segments, length[~is_segment], found)
    order = sorted(found, key=lambda key: (-found[key], str(key)))
    shares = [found[key] / total for key in order]
    parts = _adding_up(shares, step_ns)
    return tuple(
        PathShare(rank=rank, kind=kind, name=name, ns_per_step=ns, share_ratio=share)
        for (rank, kind, name), ns, share in zip(order, parts, shares, strict=True)
    )


def _add_own(
    graph: TraceGraph, segments: Int64Array, length: Int64Array, found: dict[_Class, float]
) -> None:
    """Own time of ranks, by what each segment was spent on."""
    own = graph.own_ns[segments].astype(np.float64)
    own *= (length / np.maximum(own.sum(axis=1), 1))[:, None]
    for position in np.unique(graph.owner[segments]).tolist():
        of_rank = own[graph.owner[segments] == position].sum(axis=0)
        for column, (kind, name) in _OWN.items():
            if of_rank[column] > 0:
                found[graph.ranks[position], kind, name] += float(of_rank[column])


def _add_transfers(
    graph: TraceGraph, transfers: Int64Array, length: Int64Array, found: dict[_Class, float]
) -> None:
    """What happens between ranks, by class; what was not matched, by rank."""
    known = graph.transfers
    columns = (known.kind, known.axis, known.owner, known.is_joined)
    keys = np.stack([column[transfers].astype(np.int64) for column in columns], axis=1)
    classes, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=length, minlength=len(classes))
    for (_, _, owner, is_joined), where, ns in zip(classes.tolist(), first, total, strict=True):
        if ns > 0:
            rank = graph.ranks[owner] if owner != ABSENT else None
            label = graph.label(int(transfers[where]))
            found[rank, "transfer" if is_joined else "wait", label] += float(ns)


def _adding_up(shares: list[float], total: int) -> list[int]:
    """Parts of a whole number that add up to it: cut, and the largest take what is left."""
    parts = [int(share * total) for share in shares]
    for i in range(min(total - sum(parts), len(parts))):
        parts[i] += 1
    return parts
