"""The step in which a slow link is as fast as the others: all that passes it takes less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Int64Array
from distprof.sections.matched import place_of
from distprof.sections.stragglers.result import SlowLink
from distprof.sections.whatif.scenarios import TraceChange
from distprof.sections.whatif.trace_graph import TraceGraph
from distprof.terms import CollectiveKind
from distprof.units import name_ranks

__all__ = ["link_changes"]


def link_changes(
    graph: TraceGraph, groups: Sequence[ProcessGroup], links: Sequence[SlowLink]
) -> Iterator[TraceChange]:
    """A change for each slow link: its transfers shrink as their median does to the others'.

    Args:
        graph: The run.
        groups: Groups of the run's topology.
        links: Slow links.
    """
    for link in links:
        yield TraceChange(
            what=link.scenario,
            title=f"links of {name_ranks(link.ranks)} were as fast as the others",
            ranks=link.ranks,
            transfer_ns=_faster(graph, groups, link),
        )


def _faster(graph: TraceGraph, groups: Sequence[ProcessGroup], link: SlowLink) -> Int64Array:
    known = graph.transfers
    result = known.duration_ns.astype(np.float64)
    for slow in link.transfers:
        size = ABSENT if slow.bytes is None else slow.bytes
        same = np.isin(known.place, place_of(slow.ranks, groups)) & (known.bytes == size)
        same &= known.kind == CollectiveKind[slow.kind.upper()]
        result[same] *= slow.others_ns / slow.transfer_ns
    return np.rint(result).astype(np.int64)
