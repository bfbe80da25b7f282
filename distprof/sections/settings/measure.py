"""The configuration of a job, from its live objects, its environment and its traces.

Ranks with the same configuration share one record and are listed in its ``ranks``. Several records
for the same object show a difference between ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import grouped, made_from
from distprof.artefacts.run_file import LoaderSettings, RunFile, SettingsFile
from distprof.run.records import RankRecords
from distprof.sections.context import ProbeRecords, RankAnalyses, RankAnalysis
from distprof.sections.settings import (
    ConfinedRank,
    DdpSetup,
    FsdpSetup,
    HostSetup,
    LoaderSetup,
    OptimizerSetup,
    RankFeed,
    RankInput,
    SettingsResult,
)

_MAX_CPUS = 1 << 14

_Setup = TypeVar("_Setup", bound=msgspec.Struct)


def measure_settings(records: RankRecords) -> SettingsFile | None:
    """Settings that the probe read from the objects of one rank; None if it read none."""
    return records.settings


def analyze_settings(records: ProbeRecords, analyses: RankAnalyses) -> SettingsResult:
    """The configuration from the ranks' objects, and its effects in their traces."""
    files = tuple(records.of(SettingsFile).values())
    settings = combine_settings(files, records.job, records.why("settings", files))
    return with_traces(settings, analyses)


def combine_settings(
    files: Sequence[SettingsFile], job: RunFile | None, unavailable: Sequence[str] = ()
) -> SettingsResult:
    """The ranks' configuration, with identical ranks merged."""
    notes = dict.fromkeys(note for file in files for note in file.notes)
    # ranks of one node; without node numbers from a launcher, each host is a node
    entries = {entry.rank: entry for entry in job.ranks} if job is not None else {}
    known = [(entries[file.rank], file) for file in files if file.rank in entries]
    by_host = grouped([((entry.host, entry.node), file) for entry, file in known])
    return SettingsResult(
        unavailable=(*unavailable, *notes),
        loaders=_loaders(files),
        ddp=_ddp(files),
        fsdp=tuple(_of_ranks(FsdpSetup, *one) for one in _alike(files, "fsdp")),
        optimizers=tuple(_of_ranks(OptimizerSetup, *one) for one in _alike(files, "optimizers")),
        hosts=tuple(
            _host(host, those, is_cpu=all(entries[file.rank].device == "cpu" for file in those))
            for (host, _), those in by_host.items()
        ),
        num_ranks=len(files),
        allow_tf32=_common([file.allow_tf32 for file in files]),
        cudnn_benchmark=_common([file.cudnn_benchmark for file in files]),
        is_deterministic=_common([file.is_deterministic for file in files]),
        num_compiled=max((file.num_compiled for file in files), default=0),
        num_checkpointed=max((file.num_checkpointed for file in files), default=0),
    )


def with_traces(settings: SettingsResult, analyses: Mapping[int, RankAnalysis]) -> SettingsResult:
    """The settings, with their effects in the traces."""
    feed = tuple(
        made_from(analysis.input, RankFeed, rank=rank)
        for rank, analysis in sorted(analyses.items())
        if analysis.input != RankInput()
    )
    return replace(settings, feed=feed)


# Folding ranks ------------------------------------------------------------------------------------


def _alike(
    files: Sequence[SettingsFile], field: str, **own: Any
) -> Iterable[tuple[Any, list[tuple[int, Any]]]]:
    """Objects that differ in ``own`` at most, with these values instead; all of them by rank."""
    found = [(file.rank, one) for file in files for one in getattr(file, field)]
    return grouped([(replace(one, **own), (rank, one)) for rank, one in found]).items()


def _of_ranks(
    kind: type[_Setup], given: msgspec.Struct, all_: Iterable[tuple[int, Any]], **others: Any
) -> _Setup:
    return made_from(given, kind, ranks=tuple(sorted({rank for rank, _ in all_})), **others)


def _loaders(files: Sequence[SettingsFile]) -> tuple[LoaderSetup, ...]:
    own = {"num_loaders": 1, "num_epochs": 0, "num_orders": None, "first_batch": ""}
    return tuple(
        _of_ranks(
            LoaderSetup,
            given,
            all_,
            num_epochs=min(one.num_epochs for _, one in all_),
            num_orders=max(
                (one.num_orders for _, one in all_ if one.num_orders is not None), default=None
            ),
            num_first_batches=_first_batches(all_),
        )
        for given, all_ in _alike(files, "loaders", **own)
    )


def _first_batches(loaders: Sequence[tuple[int, LoaderSettings]]) -> int | None:
    by_rank = grouped([(rank, one.first_batch) for rank, one in loaders])
    if any("" in batches for batches in by_rank.values()):
        return None
    return len({frozenset(batches) for batches in by_rank.values()})


def _ddp(files: Sequence[SettingsFile]) -> tuple[DdpSetup, ...]:
    return tuple(
        _of_ranks(
            DdpSetup,
            given,
            all_,
            num_looks=min(one.num_looks for _, one in all_),
            max_unused_bytes=None if None in unused else max(unused),
        )
        for given, all_ in _alike(files, "ddp", num_looks=0, max_unused_bytes=None)
        for unused in ([one.max_unused_bytes for _, one in all_],)
    )


def _common(values: Sequence[bool | None]) -> bool | None:
    return values[0] if values and len(set(values)) == 1 else None


# Hosts --------------------------------------------------------------------------------------------


def _host(host: str, files: Sequence[SettingsFile], *, is_cpu: bool) -> HostSetup:
    threads = [file.threads for file in files]
    cpus = set().union(*(_cpus(one.cpus) for one in threads))
    set_to = {one.omp_num_threads for one in threads}
    return HostSetup(
        host=host,
        ranks=tuple(sorted(file.rank for file in files)),
        is_cpu=is_cpu,
        num_local_ranks=max(len(files), *(one.num_local_ranks or 0 for one in threads)),
        num_cpus=len(cpus) or None,
        num_threads=max((one.num_threads for one in threads if one.num_threads), default=None),
        num_workers=sum(max((one.num_workers for one in f.loaders), default=0) for f in files),
        cpu_busy_ratio=max(
            (one.cpu_busy_ratio for one in threads if one.cpu_busy_ratio is not None), default=None
        ),
        omp_num_threads=set_to.pop() if len(set_to) == 1 else "",
        processor=next((one.processor for one in threads if one.processor), ""),
        confined=tuple(_confined(files)),
        crowded=tuple(_crowded(files)),
        without_spare=tuple(_without_spare(files)),
    )


ALL_BUSY = 0.95
"""Share of time from which CPUs count as fully busy: a rank waits because others use them."""


def _crowded(files: Sequence[SettingsFile]) -> Iterator[int]:
    """Ranks that share busy CPUs with another rank, ascending."""
    for file, _, _ in _sharing(files):
        if (file.threads.cpu_busy_ratio or 0.0) >= ALL_BUSY:
            yield file.rank


def _without_spare(files: Sequence[SettingsFile]) -> Iterator[int]:
    """Ranks that share at most as many CPUs as there are such ranks, ascending."""
    for file, num_ranks, num_cpus in _sharing(files):
        if num_ranks >= num_cpus:
            yield file.rank


def _sharing(files: Sequence[SettingsFile]) -> Iterator[tuple[SettingsFile, int, int]]:
    """Each rank that shares its set of CPUs, with the numbers of these ranks and of the CPUs."""
    sets = {file.rank: frozenset(_cpus(file.threads.cpus)) for file in files}
    num_ranks = Counter(sets.values())
    for file in sorted(files, key=lambda one: one.rank):
        cpus = sets[file.rank]
        if cpus and num_ranks[cpus] > 1:
            yield file, num_ranks[cpus], len(cpus)


def _confined(files: Sequence[SettingsFile]) -> Iterator[ConfinedRank]:
    """Ranks limited to at most half of the median rank's CPUs; none if any rank does not report."""
    numbers = [len(_cpus(file.threads.cpus)) for file in files]
    if not all(numbers):
        return
    usual = median_high(numbers)
    for file, number in sorted(zip(files, numbers, strict=True), key=lambda one: one[0].rank):
        if 2 * number <= usual:
            yield ConfinedRank(rank=file.rank, num_cpus=number, usual_cpus=usual)


def _cpus(text: str) -> set[int]:
    """CPU numbers written as ranges; empty if the text is not a list of ranges."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        first, last = (int(end) if _is_number(end) else -1 for end in (low, high if dash else low))
        if not 0 <= first <= last < _MAX_CPUS:
            return set()
        found.update(range(first, last + 1))
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8
