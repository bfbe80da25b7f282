"""A traced run with any of its changes made, several at once too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.schema import Int64Array
from distprof.sections.whatif.changes import Made, lower
from distprof.sections.whatif.scenarios import TraceChange, step_times
from distprof.sections.whatif.trace_graph import TraceGraph

__all__ = ["TraceModel"]


class TraceModel(msgspec.Struct, frozen=True, kw_only=True):
    """See :class:`~distprof.sections.whatif.changes.Model`.

    Args:
        graph: The run.
        changes: Key to change.
    """

    graph: TraceGraph
    changes: Mapping[str, TraceChange]

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step of each set of changes, ns."""
        return step_times(self.graph, [self._together(one) for one in made])

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """Own time of each rank in the segments in which it works in marked stages."""
        graph = self.graph
        if not graph.stage_ns.any():
            return {}
        own = self._together(made).own_ns
        own = graph.own_ns.sum(axis=1) if own is None else own
        total = np.bincount(graph.owner, np.where(graph.stage_ns > 0, own, 0), len(graph.ranks))
        return dict(zip(graph.ranks, total.tolist(), strict=True))

    def _together(self, made: Made) -> TraceChange:
        parts = [_partly(self.graph, self.changes[what], share) for what, share in made.items()]
        return _combined(self.graph, parts)


def _combined(graph: TraceGraph, changes: Sequence[TraceChange]) -> TraceChange:
    """All changes at once."""
    if len(changes) == 1:
        return changes[0]
    own = graph.own_ns.sum(axis=1)
    return TraceChange(
        what=" + ".join(change.what for change in changes),
        title="",
        own_ns=lower(own, [change.own_ns for change in changes]),
        transfer_ns=lower(graph.transfers.duration_ns, [change.transfer_ns for change in changes]),
        delay_ns=lower(graph.delay_ns, [change.delay_ns for change in changes]),
        release_ns=lower(graph.release_ns, [change.release_ns for change in changes]),
    )


def _partly(graph: TraceGraph, change: TraceChange, share: float) -> TraceChange:
    """The change made by a share of 0 to 1 only."""
    if share >= 1:
        return change

    def between(values: Int64Array, changed: Int64Array | None) -> Int64Array | None:
        if changed is None:
            return None
        result: Int64Array = values + np.rint(share * (changed - values)).astype(np.int64)
        return result

    return replace(
        change,
        own_ns=between(graph.own_ns.sum(axis=1), change.own_ns),
        transfer_ns=between(graph.transfers.duration_ns, change.transfer_ns),
        delay_ns=between(graph.delay_ns, change.delay_ns),
        release_ns=between(graph.release_ns, change.release_ns),
    )
