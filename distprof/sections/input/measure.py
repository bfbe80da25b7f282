"""The input of one rank: which processes load its batches, and from what memory they are copied."""

from __future__ import annotations

import re

from distprof.intervals import Intervals, covered, covered_ns, subtract, union
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Table
from distprof.sections.context import Timeline
from distprof.sections.settings import RankInput

OWN_LOADS = re.compile(r"^enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__$")
"""Ranges in which the training thread creates the batch itself; source: torch's dataloader.py."""

WORKER_LOADS = re.compile(r"^enumerate\(DataLoader\)#_MultiProcessingDataLoaderIter\.__next__$")
"""Ranges in which the training thread takes a batch from workers."""

PAGEABLE_COPIES = re.compile(r"^Memcpy HtoD \(Pageable -> Device\)$")
"""Copies, as CUPTI names them; traces of AMD GPUs do not separate kinds of CPU memory."""


def rank_input(tables: RankTables, windows: Intervals, timeline: Timeline) -> RankInput:
    """Loads and copies that touch the windows; without host rows the loads are unknown."""
    inside = union(windows)
    copies = tables.activity.take(tables.activity.coded("name").finds(PAGEABLE_COPIES))
    own = tables.host.take(tables.host.coded("name").finds(OWN_LOADS))
    workers = tables.host.take(tables.host.coded("name").finds(WORKER_LOADS))
    together = union(intervals_of(copies))
    alone = subtract(subtract(together, timeline.computation), timeline.communication)
    return RankInput(
        num_own_loads=_num_inside(own, inside),
        num_worker_loads=_num_inside(workers, inside),
        num_pageable=_num_inside(copies, inside),
        pageable_ns=covered_ns(inside, together),
        exposed_pageable_ns=covered_ns(inside, alone),
    )


def _num_inside(rows: Table, inside: Intervals) -> int:
    return int((covered(intervals_of(rows), inside) > 0).sum()) if len(rows) else 0
