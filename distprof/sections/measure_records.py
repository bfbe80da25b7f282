"""Measure the records of probes, in addition to the traces, each rank alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

import msgspec

from distprof.intervals import EMPTY, Intervals
from distprof.run.records import RankRecords, RecordSource
from distprof.run.run import Run
from distprof.sections.context import ProbeRecords
from distprof.sections.engine import declared_functions
from distprof.sections.measure_run import Mapper
from distprof.units import name_ranks

_PREFIX = "measure_"


class _OfRank(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank's records; small enough to cross a process boundary."""

    rank: int
    found: tuple[Any, ...]
    notes: tuple[str, ...]


class _Job(msgspec.Struct, frozen=True):
    """The input of a worker: a rank's records, and its analysed steps."""

    source: RecordSource
    windows: Intervals

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.source.rank


def measure_records(
    run: Run, *, executor: Mapper | None = None, windows: Mapping[int, Intervals] | None = None
) -> ProbeRecords:
    """Measure the probe records of every rank; bare traces have none.

    The executor has one rank's records in memory per worker; None measures them in this process.
    Windows are the analysed steps by rank, own clock, for the sensor samples inside them.
    """
    by_rank = windows or {}
    jobs = [_Job(run.records[rank], by_rank.get(rank, EMPTY)) for rank in sorted(run.records)]
    results = map(_measure, jobs) if executor is None else executor.map(_measure, jobs)
    outcomes = list(results)
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    ranks = [outcome for outcome in outcomes if isinstance(outcome, _OfRank)]
    found: dict[type, dict[int, Any]] = {}
    for rank in ranks:
        for one in rank.found:
            found.setdefault(type(one), {})[rank.rank] = one
    return ProbeRecords(found=found, job=run.job, notes=(*failed, *_folded_notes(ranks)))


def _measure(job: _Job) -> _OfRank:
    records = job.source.load()
    given = {RankRecords: records, Intervals: job.windows}
    found = (
        make(**{name: given[need] for name, need in needs.items()})
        for make, needs in record_parts()
    )
    present = tuple(one for one in found if one is not None)
    return _OfRank(rank=records.rank, found=present, notes=records.notes)


@cache
def record_parts() -> Sequence[tuple[Callable[..., Any], Mapping[str, type]]]:
    """Functions that measure one rank's records, with the types of their parameters.

    These are the functions ``measure_…(records: RankRecords)`` in the ``measure`` modules of
    subjects. Results are looked up by type, so no two functions may return the same type.
    """
    found = declared_functions(_PREFIX).values()
    hints = {make: get_type_hints(make) for make in found if "records" in make.__annotations__}
    return [
        (make, {name: need for name, need in kinds.items() if name != "return"})
        for make, kinds in hints.items()
        if RankRecords in kinds.values()
    ]


def _folded_notes(ranks: Iterable[_OfRank]) -> list[str]:
    """Notes of all ranks, each once with the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank in ranks:
        for note in rank.notes:
            ranks_of.setdefault(note, []).append(rank.rank)
    return [f"{name_ranks(numbers)}: {note}" for note, numbers in ranks_of.items()]
