"""Exposed copies by direction, because only copies from or to the CPU gain from pinned memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, intersect, outermost, total, union
from distprof.run.tables import intervals_of, join_launches
from distprof.schema import ABSENT, Table
from distprof.sections.context import RankCopies
from distprof.sections.time.result import ExposedCopies
from distprof.terms import ActivityKind

MANY = 0.05  # Share of the windows from which exposed copies justify reading every operator

MAX_OPERATORS = 3

_OPERATOR, _TENSOR_OPERATOR = "cpu_op", "aten::"

_CUDA = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_HIP = re.compile(r"Copy(Host|Device)To(Host|Device)", re.IGNORECASE)


@lru_cache(1 << 10)  # all ranks have the same few names
def direction_of(name: str) -> tuple[str, str]:
    """Direction and kind of CPU memory, from the name of a copy.

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
    return "memset" if "memset" in name.lower() else "other", ""


def measure_copies(
    activity: Table,
    windows: Intervals,
    exposed: Intervals,
    load_host: Callable[[], Table] | None = None,
) -> tuple[RankCopies, ...]:
    """Copies of one rank by kind."""
    copies = activity.take(activity["kind"] == ActivityKind.COPY)
    names = copies.coded("name")
    start, end = intervals_of(copies)
    inside = covered(Intervals(start, np.maximum(end, start + 1)), union(windows)) > 0
    alone = intersect(exposed, union(windows))
    is_long = total(alone) >= MANY * (windows.end - windows.start).sum()
    operators = np.full(len(copies), "", dtype=object)
    if load_host is not None and alone.size and is_long:
        operators = _operators(copies, load_host())
    kinds = [direction_of(name) for name in names.values]
    found = []
    for direction, memory in sorted(set(kinds)):
        rows = names.where([kind == (direction, memory) for kind in kinds]) & inside
        sizes = copies["bytes"][rows]
        spans = union(Intervals(start[rows], end[rows]))
        spent: Counter[str] = Counter()
        for name, ns in zip(operators[rows].tolist(), (end - start)[rows].tolist(), strict=True):
            if name:
                spent[name] += ns
        found.append(
            RankCopies(
                direction=direction,
                host_memory=memory,
                count=int(rows.sum()),
                num_bytes=int(ABSENT) if (sizes == ABSENT).any() else int(sizes.sum()),
                duration_ns=int((end - start)[rows].sum()),
                exposed_ns=int(covered(spans, alone).sum()),
                operators=dict(spent.most_common(MAX_OPERATORS)),
            )
        )
    return tuple(one for one in found if one.count)


def _operators(copies: Table, host: Table) -> NDArray[np.object_]:
    """Outermost tensor operator that launched each copy; empty if unknown."""
    launches = join_launches(copies["correlation"], host)
    names, threads = host.coded("name"), host.coded("thread").codes
    tensor = names.where([name.startswith(_TENSOR_OPERATOR) for name in names.values])
    tensor &= host.coded("category").equals(_OPERATOR)
    found = np.full(len(copies), "", dtype=object)
    for thread in np.unique(launches.thread[launches.known]).tolist():
        rows = np.flatnonzero(tensor & (threads == thread))
        rows = rows[outermost(host["start_ns"][rows], host["end_ns"][rows])]
        mine = np.flatnonzero(launches.known & (launches.thread == thread))
        if len(rows) == 0:
            continue
        call = launches.start[mine]
        at = np.searchsorted(host["start_ns"][rows], call, side="right") - 1
        inside = (at >= 0) & (call < host["end_ns"][rows[np.maximum(at, 0)]])
        within = rows[at[inside]]
        found[mine[inside]] = [names.values[code] for code in names.codes[within].tolist()]
    return found


def _busiest_overall(ones: Iterable[RankCopies]) -> tuple[str, ...]:
    """Operators of all ranks, longest copies first."""
    spent: Counter[str] = Counter()
    for one in ones:
        spent.update(one.operators)
    return tuple(name for name, _ in spent.most_common(MAX_OPERATORS))


def exposed_copies(
    ranks: Iterable[Iterable[RankCopies]], num_samples: int
) -> tuple[ExposedCopies, ...]:
    """Copies by kind, as means over ranks and steps."""
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
            operators=_busiest_overall(ones),
        )
        for (direction, memory), ones in by_kind.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns_per_step, row.direction)))
