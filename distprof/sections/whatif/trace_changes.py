"""A traced run, simulated with any set of its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.whatif.changes import Change, Made, lower
from distprof.sections.whatif.scenarios import TraceChange, step_times
from distprof.sections.whatif.trace_graph import TraceGraph


class _Difference(msgspec.Struct, frozen=True):
    """The difference between an array and its changed version, stored compactly."""

    index: NDArray[np.int32] | None  # int32 positions that change; None for all.
    more: NDArray[np.int32] | Int64Array  # Values added there, int32 if they fit, else int64.

    @staticmethod
    def of(values: Int64Array, changed: Int64Array | None) -> _Difference | None:
        """The difference; None for an array that does not change."""
        if changed is None:
            return None
        more = changed - values
        index = np.flatnonzero(more)
        if 2 * len(index) > len(more):
            return _Difference(None, _narrow(more))
        return _Difference(index.astype(np.int32), _narrow(more[index]))

    def on(self, values: Int64Array) -> Int64Array:
        """The changed array."""
        if self.index is None:
            return values + self.more
        result = values.copy()
        result[self.index] += self.more
        return result


_WIDEST = np.iinfo(np.int32).max


def _narrow(values: Int64Array) -> NDArray[np.int32] | Int64Array:
    fits = not len(values) or max(-int(values.min()), int(values.max())) <= _WIDEST
    return values.astype(np.int32) if fits else values


class PackedChange(Change, frozen=True, kw_only=True):
    """A compact :class:`TraceChange`: dozens are kept, and each would be as large as the run."""

    own: _Difference | None
    transfer: _Difference | None
    delay: _Difference | None
    release: _Difference | None

    def on(self, graph: TraceGraph) -> TraceChange:
        """The change, unpacked for its run."""

        def whole(values: Int64Array, part: _Difference | None) -> Int64Array | None:
            return None if part is None else part.on(values)

        return TraceChange(
            **{field.name: getattr(self, field.name) for field in fields(Change)},
            own_ns=whole(graph.own_total_ns, self.own),
            transfer_ns=whole(graph.transfers.duration_ns, self.transfer),
            delay_ns=whole(graph.delay_ns, self.delay),
            release_ns=whole(graph.release_ns, self.release),
        )


def packed(graph: TraceGraph, change: TraceChange) -> PackedChange:
    """The change, stored compactly."""
    return PackedChange(
        **{field.name: getattr(change, field.name) for field in fields(Change)},
        own=_Difference.of(graph.own_total_ns, change.own_ns),
        transfer=_Difference.of(graph.transfers.duration_ns, change.transfer_ns),
        delay=_Difference.of(graph.delay_ns, change.delay_ns),
        release=_Difference.of(graph.release_ns, change.release_ns),
    )


class TraceModel(msgspec.Struct, frozen=True, kw_only=True):
    """See :class:`~distprof.sections.whatif.changes.Model`."""

    graph: TraceGraph  # The run.
    changes: Mapping[str, PackedChange]  # Changes by key.

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step of each set of changes, ns."""
        return step_times(self.graph, map(self._together, made))

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """Own time of each rank in segments with work in marked stages."""
        graph = self.graph
        if not graph.stage_ns.any():
            return {}
        own = self._together(made).own_ns
        own = graph.own_total_ns if own is None else own
        total = np.bincount(graph.owner, np.where(graph.stage_ns > 0, own, 0), len(graph.ranks))
        return dict(zip(graph.ranks, total.tolist(), strict=True))

    def _together(self, made: Made) -> TraceChange:
        parts = [
            _partly(self.graph, self.changes[what].on(self.graph), share)
            for what, share in made.items()
        ]
        return _combined(self.graph, parts)


def _combined(graph: TraceGraph, changes: Sequence[TraceChange]) -> TraceChange:
    """All changes at once."""
    if len(changes) == 1:
        return changes[0]
    own = graph.own_total_ns
    return TraceChange(
        what=" + ".join(change.what for change in changes),
        title="",
        own_ns=lower(own, [change.own_ns for change in changes]),
        transfer_ns=lower(graph.transfers.duration_ns, [change.transfer_ns for change in changes]),
        delay_ns=lower(graph.delay_ns, [change.delay_ns for change in changes]),
        release_ns=lower(graph.release_ns, [change.release_ns for change in changes]),
    )


def _partly(graph: TraceGraph, change: TraceChange, share: float) -> TraceChange:
    """The change made only by a share from 0 to 1."""
    if share >= 1:
        return change

    def between(values: Int64Array, changed: Int64Array | None) -> Int64Array | None:
        if changed is None:
            return None
        result: Int64Array = values + np.rint(share * (changed - values)).astype(np.int64)
        return result

    return replace(
        change,
        own_ns=between(graph.own_total_ns, change.own_ns),
        transfer_ns=between(graph.transfers.duration_ns, change.transfer_ns),
        delay_ns=between(graph.delay_ns, change.delay_ns),
        release_ns=between(graph.release_ns, change.release_ns),
    )
