"""Exposed copies by direction: only copies from or to the CPU gain from pinned memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from distprof.intervals import Intervals, covered, intersect, union
from distprof.run.tables import intervals_of
from distprof.schema import ABSENT, Table
from distprof.sections.context import RankCopies
from distprof.sections.time.result import ExposedCopies
from distprof.terms import ActivityKind

__all__ = ["direction_of", "exposed_copies", "measure_copies"]

_CUDA = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_HIP = re.compile(r"Copy(Host|Device)To(Host|Device)", re.IGNORECASE)


def direction_of(name: str) -> tuple[str, str]:
    """Direction and kind of CPU memory that a copy's name tells.

    For example ``Memcpy HtoD (Pageable -> Device)`` gives ``HtoD`` and ``pageable``.
    """
    cuda = _CUDA.search(name)
    if cuda:
        words = {(word or "").lower() for word in cuda.groups()[2:]}
        memory = next((word for word in ("pageable", "pinned") if word in words), "")
        return f"{cuda[1].upper()}to{cuda[2].upper()}", memory
    hip = _HIP.search(name)
    if hip:
        return f"{hip[1][0].upper()}to{hip[2][0].upper()}", ""
    return ("memset" if "memset" in name.lower() else "other"), ""


def measure_copies(
    activity: Table, windows: Intervals, exposed: Intervals
) -> tuple[RankCopies, ...]:
    """Copies of one rank by kind.

    Args:
        activity: ACTIVITY table.
        windows: Analysed windows, by start.
        exposed: Time in which copies run and nothing else, disjoint.
    """
    copies = activity.take(activity["kind"] == ActivityKind.COPY)
    names = copies.coded("name")
    start, end = intervals_of(copies)
    inside = covered(Intervals(start, np.maximum(end, start + 1)), union(windows)) > 0
    alone = intersect(exposed, union(windows))
    by_kind: dict[tuple[str, str], list[int]] = {}
    for code, name in enumerate(names.values):
        by_kind.setdefault(direction_of(name), []).append(code)
    found = []
    for (direction, memory), codes in sorted(by_kind.items()):
        rows = np.isin(names.codes, codes) & inside
        sizes = copies["bytes"][rows]
        spans = union(Intervals(start[rows], end[rows]))
        found.append(
            RankCopies(
                direction=direction,
                host_memory=memory,
                count=int(rows.sum()),
                num_bytes=int(ABSENT) if (sizes == ABSENT).any() else int(sizes.sum()),
                exposed_ns=int(covered(spans, alone).sum()),
            )
        )
    return tuple(one for one in found if one.count)


def exposed_copies(
    ranks: Iterable[Iterable[RankCopies]], num_samples: int
) -> tuple[ExposedCopies, ...]:
    """Copies of all ranks as means.

    Args:
        ranks: Those of each rank.
        num_samples: Ranks times steps.
    """
    by_kind: dict[tuple[str, str], list[RankCopies]] = {}
    for rank in ranks:
        for one in rank:
            by_kind.setdefault((one.direction, one.host_memory), []).append(one)
    samples = max(num_samples, 1)
    rows = [
        ExposedCopies(
            direction=direction,
            host_memory=memory,
            num_per_step=sum(one.count for one in ones) / samples,
            bytes_per_step=(
                None
                if any(one.num_bytes == ABSENT for one in ones)
                else sum(one.num_bytes for one in ones) / samples
            ),
            exposed_ns_per_step=sum(one.exposed_ns for one in ones) // samples,
        )
        for (direction, memory), ones in by_kind.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns_per_step, row.direction)))
