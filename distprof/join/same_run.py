"""Which of the files read belong to one run: each rank once, all of one job, of one recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from distprof.run.run import Gap, Rank
from distprof.schema import ABSENT
from distprof.units import NS_PER_S, fold_ranks, name_ranks

__all__ = ["same_run"]

CLOCK_TOLERANCE_NS = 60 * NS_PER_S
"""Captures of different hosts that lie farther apart were not made together: clocks of a cluster
are never that far off, and a profiler is not started that late."""

_MAX_NAMED = 5
_Selection: TypeAlias = "tuple[list[Rank], list[Gap]]"


def same_run(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], tuple[Gap, ...]]:
    """The largest set of ranks that one recording of one job can have made.

    Args:
        ranks: One per file read; ``rank`` is ABSENT where neither trace nor name tells it.

    Returns:
        Ranks in ascending order, each number once; and what was left out or assumed.
    """
    gaps: list[Gap] = []
    kept = list(ranks)
    for step in (_one_job, _drop_copies, _one_recording, _number_unknown, _each_rank_once):
        kept, found = step(kept)
        gaps += found
    return tuple(sorted(kept, key=lambda rank: rank.rank)), tuple(gaps)


def _one_job(ranks: list[Rank]) -> _Selection:
    """Ranks of the world size and backend that most files name; files that name none stay."""
    counts = Counter(_job(rank) for rank in ranks if rank.world_size is not None)
    if len(counts) < 2:
        return ranks, []
    most = max(counts, key=lambda job: (counts[job], job))
    kept = [rank for rank in ranks if rank.world_size is None or _job(rank) == most]
    left = [rank for rank in ranks if rank.world_size is not None and _job(rank) != most]
    sizes = ", ".join(sorted({f"{r.world_size} ({r.backend or 'backend unknown'})" for r in left}))
    message = (
        f"The files belong to {len(counts)} jobs: analysed are the {len(kept)} of world size "
        f"{most[0]}, left out {_files(left)} of world size {sizes}. "
        "Analyse one job's folder at a time."
    )
    return kept, [Gap(what="mixed-runs", message=message)]


def _job(rank: Rank) -> tuple[int, str]:
    return rank.world_size or 0, rank.backend


def _number_unknown(ranks: list[Rank]) -> _Selection:
    """Numbers for files that tell no rank: the lowest free ones, in order of their paths."""
    unknown = sorted((rank for rank in ranks if rank.rank == ABSENT), key=lambda rank: rank.path)
    if not unknown:
        return ranks, []
    taken = {rank.rank for rank in ranks}
    free = (number for number in range(len(ranks) + len(taken)) if number not in taken)
    numbered = [replace(rank, rank=next(free)) for rank in unknown]
    kept = [rank for rank in ranks if rank.rank != ABSENT] + numbered
    if len(ranks) == 1:
        return kept, []
    message = (
        f"{_files(unknown)} tell no rank, neither inside nor by name: numbered "
        f"{fold_ranks(rank.rank for rank in numbered)} in order of their names."
    )
    gap = Gap(what="rank-unknown", message=message, ranks=tuple(r.rank for r in numbered))
    return kept, [gap]


def _drop_copies(ranks: list[Rank]) -> _Selection:
    """One of several files with the same content."""
    seen: dict[tuple[object, ...], Rank] = {}
    copies = [rank for rank in ranks if seen.setdefault(_content(rank), rank) is not rank]
    if not copies:
        return ranks, []
    does = "repeats" if len(copies) == 1 else "repeat"
    is_unused = "is" if len(copies) == 1 else "are"
    message = f"{_files(copies)} {does} the content of another file and {is_unused} not used."
    kept = list(seen.values())
    return kept, [Gap(what="duplicate-files", message=message)]


def _content(rank: Rank) -> tuple[object, ...]:
    counts = len(rank.collectives), len(rank.steps), rank.quality.num_events
    return rank.rank, rank.capture_start_ns, rank.capture_end_ns, *counts


def _one_recording(ranks: list[Rank]) -> _Selection:
    """The recording with most ranks, of several that lie far apart in time; else the newest."""
    dated = [rank for rank in ranks if rank.has_epoch]
    clusters = _clusters(dated, CLOCK_TOLERANCE_NS)
    if len(clusters) < 2:
        return ranks, []
    best = max(clusters, key=_weight)
    left = [rank for cluster in clusters if cluster is not best for rank in cluster]
    count = _num_ranks(best)
    kept_are = f"are the {count} ranks recorded together" if count > 1 else "is the newest"
    message = (
        f"The files were recorded at {len(clusters)} times more than a minute apart: analysed "
        f"{kept_are}, left out {_files(left)}. Ranks can only be compared over the same steps."
    )
    kept = [rank for rank in ranks if not rank.has_epoch] + best
    return kept, [Gap(what="other-recordings", message=message)]


def _each_rank_once(ranks: list[Rank]) -> _Selection:
    """One capture of each rank: of the capture that most ranks share, else the newest, longest."""
    by_rank: dict[int, list[Rank]] = defaultdict(list)
    for rank in ranks:
        by_rank[rank.rank].append(rank)
    repeated = sorted(number for number, several in by_rank.items() if len(several) > 1)
    if not repeated:
        return ranks, []
    shared = {id(rank) for rank in max(_clusters(ranks, 0), key=_weight)}
    kept = [
        max(several, key=lambda r: (id(r) in shared, r.capture_end_ns, -r.capture_start_ns))
        for several in by_rank.values()
    ]
    chosen = {id(rank) for rank in kept}
    left = [rank for rank in ranks if id(rank) not in chosen]
    message = (
        f"There are several captures of {name_ranks(repeated)}: the newest that most ranks share "
        f"is analysed, left out {_files(left)}."
    )
    return kept, [Gap(what="duplicate-ranks", message=message, ranks=tuple(repeated))]


def _clusters(ranks: Sequence[Rank], tolerance_ns: int) -> list[list[Rank]]:
    """Ranks whose captures overlap or lie within the tolerance, directly or through others."""
    clusters: list[list[Rank]] = []
    reach = 0
    for rank in sorted(ranks, key=lambda rank: rank.capture_start_ns):
        if clusters and rank.capture_start_ns <= reach + tolerance_ns:
            clusters[-1].append(rank)
            reach = max(reach, rank.capture_end_ns)
        else:
            clusters.append([rank])
            reach = rank.capture_end_ns
    return clusters


def _weight(cluster: list[Rank]) -> tuple[int, int]:
    return _num_ranks(cluster), max(rank.capture_end_ns for rank in cluster)


def _num_ranks(ranks: Sequence[Rank]) -> int:
    """Distinct ranks; each file that tells no rank counts as one."""
    return len({rank.rank if rank.rank != ABSENT else rank.path for rank in ranks})


def _files(ranks: Sequence[Rank]) -> str:
    paths = [rank.path for rank in ranks]
    more = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more files" if more > 0 else "")
