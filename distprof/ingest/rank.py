"""The unit of parallel work: one trace file to one rank, its tables in the cache.

Small things (the rank's summary, its steps and collectives) come back to the caller; the large
tables stay on disk and are loaded one rank at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from distprof.config import CommunicationConfig
from distprof.ingest.communication import Classifier
from distprof.ingest.conclude import Conclusions, conclude
from distprof.ingest.discovery import TraceFile, open_trace
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.kineto.reader import read_trace
from distprof.run.run import Rank, TableSource
from distprof.run.tables import RankTables
from distprof.schema import ABSENT

__all__ = ["IngestOptions", "ingest_rank"]

Rows = Literal["all", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How traces are read.

    Args:
        rows: ``device`` reads device rows only: faster, but nothing about the host is known.
        strict: Refuse damaged traces instead of salvaging what is whole.
        cache_dir: Where parsed tables are kept; None for the usual place.
        use_cache: Whether tables of an earlier read may be used, and are kept for a later one.
        run_dir: The folder that the traces came from; a run directory keeps its own cache.
        communication: Names that are communication, beyond those that ship with distprof.
    """

    rows: Rows = "all"
    strict: bool = False
    cache_dir: str | None = None
    use_cache: bool = True
    run_dir: str | None = None
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTables:
    """Tables that stay in memory."""

    held: RankTables

    def load(self) -> RankTables:
        """The tables."""
        return self.held


def ingest_rank(trace: TraceFile, options: IngestOptions) -> Rank:
    """Read one trace, from the cache where it has been read before.

    Args:
        trace: The file. Its name tells the rank where the trace does not; where neither does, the
            result's ``rank`` is ABSENT and its origin ``assumed``: the caller numbers it.
        options: How to read.

    Raises:
        InputError: If the file is no Kineto trace, or is damaged and ``options.strict`` is set.
    """
    parsed = _read(trace, options)
    found = conclude(parsed, parsed.host, Classifier(options.communication))
    tables = RankTables(
        activity=found.activity,
        host=parsed.host,
        collectives=found.collectives,
        steps=found.steps.table,
        has_host=len(parsed.host) > 0 and options.rows == "all",
    )
    return _rank(trace, parsed, found, HeldTables(held=tables))


def _read(trace: TraceFile, options: IngestOptions) -> ParsedTrace:
    with open_trace(trace) as opened:
        return read_trace(opened, rows=options.rows, strict=options.strict, source=trace.path)


def _rank(trace: TraceFile, parsed: ParsedTrace, found: Conclusions, tables: TableSource) -> Rank:
    number, origin = _number(trace, found.metadata.rank)
    return Rank(
        rank=number,
        path=trace.path,
        rank_origin=origin,
        world_size=found.metadata.world_size,
        host=found.metadata.host,
        backend=found.metadata.backend,
        device=found.device,
        groups=found.metadata.groups,
        versions=found.metadata.versions,
        capture_start_ns=parsed.first_ns,
        capture_end_ns=parsed.last_ns,
        has_epoch=parsed.has_epoch,
        step_source=found.steps.source,
        step_note=found.steps.note,
        steps=found.steps.table,
        collectives=found.collectives,
        quality=found.quality,
        tables=tables,
    )


def _number(
    trace: TraceFile, told: int | None
) -> tuple[int, Literal["trace", "file name", "assumed"]]:
    """Rank and where it comes from."""
    if told is not None:
        return told, "trace"
    if trace.name_rank is not None:
        return trace.name_rank, "file name"
    return ABSENT, "assumed"
