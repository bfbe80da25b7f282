"""Run: everything known about one recording of a job, frozen after ingest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import NDArray

from distprof.artefacts.rank_file import ErrorFile
from distprof.artefacts.run_file import RunFile
from distprof.run.records import RecordSource
from distprof.run.tables import RankTables
from distprof.run.topology import ProcessGroup, Topology
from distprof.schema import Int64Array, Table
from distprof.terms import StepSource
from distprof.units import name_ranks

__all__ = [
    "ANOTHER_JOB",
    "CaptureWindow",
    "ClockAlignment",
    "CollectiveMatches",
    "Device",
    "Gap",
    "Quality",
    "Rank",
    "Run",
    "TableSource",
]

_T = TypeVar("_T")

ANOTHER_JOB = "another-job"
"""A gap: what was joined with the recording is not of its job."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that is missing or damaged, and what follows from it.

    Args:
        what: Short stable word, for example ``missing-ranks`` or ``truncated``.
        message: One sentence for the user.
        ranks: Ranks concerned; empty when it is about the whole run.
        num_files: Files that were left out because they are of another job or recording.
    """

    what: str
    message: str
    ranks: tuple[int, ...] = ()
    num_files: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerator a rank used. ``name`` is ``cpu`` for CPU-only traces, empty when unknown."""

    name: str
    count: int | None = None
    memory_bytes: int | None = None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader met in one file, counted.

    Args:
        num_events: Events kept or skipped on purpose.
        num_repaired: Events that were invalid JSON and could be mended.
        num_quarantined: Events given up.
        num_clamped: Events with a negative or absurd duration, kept with duration 0.
        num_unlaunched: Device activities without a launch record in the trace.
        lost_bytes: Uncompressed bytes after the last complete event of a truncated file.
        truncated: Whether the file ends before its end.
        with_stack: Whether Python stacks were recorded.
        no_device: Why what ran on the device is unknown, in a sentence; empty where it was recorded
            or the host did the work.
        notes: What was done about oddities, one sentence each, at most a few.
    """

    num_events: int = 0
    num_repaired: int = 0
    num_quarantined: int = 0
    num_clamped: int = 0
    num_unlaunched: int = 0
    lost_bytes: int = 0
    truncated: bool = False
    with_stack: bool = False
    no_device: str = ""
    notes: tuple[str, ...] = ()


class TableSource(Protocol):
    """Where a rank's tables come from: a cache file, or memory. Picklable."""

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables.

        Args:
            every_host_row: Read every operator too, and not only the host rows that analyses need,
                which are several times fewer.
        """
        ...


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the run: what its trace says about itself, and where its tables are.

    Args:
        rank: Global rank.
        path: The trace, as named by the user.
        rank_origin: How the rank was found.
        world_size: As the trace says, else None.
        host: Host name, else None.
        backend: Backend of the default group, for example ``nccl``; empty when unknown.
        device: The accelerator.
        groups: Process groups this rank belongs to.
        versions: Versions found in the trace, for example ``nccl`` and ``cuda``.
        capture_start_ns: First event, own clock.
        capture_end_ns: Last event, own clock.
        has_epoch: Whether times are since the epoch, so that ranks can be compared at all.
        step_source: How steps were found.
        step_note: One sentence on how step windows were found.
        steps: STEPS table.
        collectives: COLLECTIVES table.
        quality: What the reader met.
        tables: Loads the other tables.
    """

    rank: int
    path: str
    rank_origin: Literal["trace", "run.json", "file name", "assumed"]
    world_size: int | None
    host: str | None
    backend: str
    device: Device
    groups: tuple[ProcessGroup, ...]
    versions: Mapping[str, str]
    capture_start_ns: int
    capture_end_ns: int
    has_epoch: bool
    step_source: StepSource
    step_note: str
    steps: Table
    collectives: Table
    quality: Quality
    tables: TableSource

    def light(self) -> Rank:
        """The same for another machine: its tables do not hold the collectives once more."""
        tables = getattr(self.tables, "light", lambda: self.tables)()
        return replace(self, tables=tables)


class CollectiveMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives seen by two or more ranks, their members joined.

    Instance ``i`` has the members ``offsets[i]:offsets[i + 1]`` of ``member_rank`` and
    ``member_row``. Instances are in order of time.

    Args:
        offsets: int64, shape ``(n + 1,)``.
        member_rank: int32, global rank of each member.
        member_row: int32, row of the member in its rank's COLLECTIVES table.
        group: int32, shape ``(n,)``, index into the topology's groups.
        kind: int8, shape ``(n,)``, a CollectiveKind.
        bytes: int64, shape ``(n,)``, full buffer, or absent.
        method: int8, shape ``(n,)``, a MatchMethod.
        complete: bool, shape ``(n,)``, whether every member of the group was found.
        num_candidates: Rows of all ranks that could have had a partner among the ranks present.
        num_matched: Those of them that are members of a complete instance, or of one that has every
            rank that is present.
        ambiguous_ranks: Ranks with rows that fit those of others in several ways about equally
            well, and are not matched for that reason.
        misnumbered_ranks: Ranks whose collectives of equal sequence numbers do not end together:
            the numbers of one of them are wrong.
        notes: What the matcher had to assume, one sentence each.
    """

    offsets: Int64Array
    member_rank: NDArray[np.int32]
    member_row: NDArray[np.int32]
    group: NDArray[np.int32]
    kind: NDArray[np.int8]
    bytes: Int64Array
    method: NDArray[np.int8]
    complete: NDArray[np.bool_]
    num_candidates: int
    num_matched: int
    ambiguous_ranks: tuple[int, ...] = ()
    misnumbered_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of matched instances."""
        return len(self.group)

    @property
    def matched_ratio(self) -> float | None:
        """Share of candidates that found their partners; None without candidates."""
        return self.num_matched / self.num_candidates if self.num_candidates else None

    @staticmethod
    def none(notes: tuple[str, ...] = ()) -> CollectiveMatches:
        """No instance at all, as for a single rank."""
        return CollectiveMatches(
            offsets=np.zeros(1, np.int64),
            member_rank=np.empty(0, np.int32),
            member_row=np.empty(0, np.int32),
            group=np.empty(0, np.int32),
            kind=np.empty(0, np.int8),
            bytes=np.empty(0, np.int64),
            method=np.empty(0, np.int8),
            complete=np.empty(0, np.bool_),
            num_candidates=0,
            num_matched=0,
            notes=notes,
        )


class ClockAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections that put all ranks on one clock, with what remains uncertain.

    A clock domain is a set of ranks that share a clock (one host); where hosts are unknown, each
    rank is a domain. ``common = own - offset_ns[d] - drift_ratio[d] * (own - reference_ns)``.

    Args:
        domains: Ranks of each domain.
        names: Name of each domain: the node, or ``rank N``.
        offset_ns: float64 per domain, at ``reference_ns``.
        drift_ratio: float64 per domain, dimensionless (20 ppm = 2e-5).
        reference_ns: Where on the own clocks the offsets hold.
        residual_ns: int64 per domain: 95th percentile of the distance of its members' collective
            ends from the common end, after correction; ABSENT where nothing was measured.
        component: int32 per domain: only domains of one component can be compared.
        within_ns: int64 per domain: uncertainty of a difference between two of its ranks; None
            where that is the residual.
        num_checked: Matched symmetric collectives tested for causality.
        num_violations: Those in which a member ends before the last starts, beyond the residual.
        notes: What was assumed, one sentence each.
    """

    domains: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    offset_ns: NDArray[np.float64]
    drift_ratio: NDArray[np.float64]
    reference_ns: int
    residual_ns: Int64Array
    component: NDArray[np.int32]
    within_ns: Int64Array | None = None
    num_checked: int = 0
    num_violations: int = 0
    notes: tuple[str, ...] = ()
    _domain_of: dict[int, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        index = {rank: i for i, ranks in enumerate(self.domains) for rank in ranks}
        force_setattr(self, "_domain_of", index)

    def domain_of(self, rank: int) -> int:
        """Index of the domain of ``rank``.

        Raises:
            ValueError: If no domain holds the rank.
        """
        if rank not in self._domain_of:
            raise ValueError(f"rank {rank} is not in any clock domain")
        return self._domain_of[rank]

    def correction(self, rank: int, own_ns: Int64Array) -> Int64Array:
        """What to subtract from own times of ``rank`` to get common times, int64 ns."""
        domain = self.domain_of(rank)
        drift = self.drift_ratio[domain] * (own_ns - self.reference_ns)
        rounded: Int64Array = np.rint(self.offset_ns[domain] + drift).astype(np.int64)
        return rounded

    def to_common(self, rank: int, own_ns: Int64Array) -> Int64Array:
        """Times of ``rank`` on the common clock, int64 ns."""
        return own_ns - self.correction(rank, own_ns)

    def residual_between(self, first: int, second: int) -> int | None:
        """Uncertainty of a time difference between two ranks, in ns; None if not comparable."""
        a, b = self.domain_of(first), self.domain_of(second)
        if a == b and self.within_ns is not None and self.within_ns[a] >= 0:
            return int(self.within_ns[a])
        if self.component[a] != self.component[b]:
            return None
        if self.residual_ns[a] < 0 or self.residual_ns[b] < 0:
            return None
        return int(max(self.residual_ns[a], self.residual_ns[b]))


class CaptureWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the recording that all ranks share and that is analysed.

    Args:
        steps: Step numbers that every rank recorded completely, ascending; empty where no rank has
            step marks (then each rank's whole capture is one window).
        dropped: Steps left out, with the reason, for example ``{10: "cut by the capture"}``.
        overlap_ratio: Time all captures share / time any of them covers, on the common clock; None
            for a single rank or clocks that cannot be compared.
        transient_steps: Steps left out because the profiler's start disturbs them.
        start_waits: Instances whose wait may come from starting the profiler, ascending.
        start_wait_ns: Waiting in those of them that are in analysed steps, mean per rank and step.
    """

    steps: tuple[int, ...]
    dropped: Mapping[int, str] = msgspec.field(default_factory=dict)
    overlap_ratio: float | None = None
    transient_steps: tuple[int, ...] = ()
    start_waits: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    start_wait_ns: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One recording of a job: its ranks, topology, matched collectives, clock and gaps.

    Args:
        source: What the user named.
        ranks: Ranks that could be read, ascending.
        topology: Nodes, groups and axes.
        matches: Collectives joined across ranks.
        clock: How ranks' clocks relate.
        window: What is analysed.
        gaps: What is missing or damaged.
        job: What a run directory says of the job; None for bare traces.
        records: Rank number to what its probes recorded; also of ranks that were not traced.
        errors: Why Python code of ranks stopped, in order of time.
        run_dir: The run directory, empty for bare traces.
        origin: What kind of log or table the source is, for people; empty for traces and run
            directories.
        evidence: What logs and tables say, each by its type, at most one of each: see :meth:`get`.
    """

    source: str
    ranks: tuple[Rank, ...]
    topology: Topology
    matches: CollectiveMatches
    clock: ClockAlignment
    window: CaptureWindow
    gaps: tuple[Gap, ...] = ()
    job: RunFile | None = None
    records: Mapping[int, RecordSource] = msgspec.field(default_factory=dict)
    errors: tuple[ErrorFile, ...] = ()
    run_dir: str = ""
    origin: str = ""
    evidence: Mapping[type, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the ranks hold whole tables."""
        numbers = name_ranks(rank.rank for rank in self.ranks) if self.ranks else "no rank"
        of = f" of {self.topology.world_size}" if self.topology.world_size else ""
        steps, gaps = len(self.window.steps), len(self.gaps)
        return (
            f"<Run of {self.source!r}: {numbers}{of}, "
            f"{steps} common step{'' if steps == 1 else 's'}, {gaps} gap{'' if gaps == 1 else 's'}>"
        )

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    def rank(self, rank: int) -> Rank:
        """The rank with that number.

        Raises:
            ValueError: If it is not part of the run.
        """
        found = self.find(rank)
        if found is None:
            raise ValueError(f"rank {rank} is not part of this run")
        return found

    def find(self, rank: int) -> Rank | None:
        """The rank with that number; None if it is not part of the run."""
        place = bisect_left(self.ranks, rank, key=lambda one: one.rank)
        found = self.ranks[place] if place < len(self.ranks) else None
        return found if found is not None and found.rank == rank else None

    def get(self, kind: type[_T]) -> _T | None:
        """The evidence of that type, for example ``NcclLog``; None where there is none."""
        return self.evidence.get(kind)

    def having(self, content: object) -> Run:
        """This run with a piece of evidence, which replaces one of the same type."""
        return replace(self, evidence={**self.evidence, type(content): content})

    def to_hta(
        self,
        *,
        ranks: Sequence[int] | None = None,
        include_last_step: bool = False,
        exact: bool = False,
    ) -> Any:
        """This run as an ``hta.trace_analysis.TraceAnalysis``, without HTA's parser.

        Args:
            ranks: Ranks to hand over, None for all. HTA keeps all of them in memory.
            include_last_step: HTA drops the last of several profiler steps unless this is set.
            exact: Hand over fractions of microseconds instead of rounding as HTA does.

        Raises:
            MissingExtraError: If HTA is not installed (extra ``hta``).
            InputError: If the run was opened without host rows.
            ValueError: If a rank is not part of the run.
        """
        from distprof.run.hta_bridge import to_hta  # HTA brings plotly and networkx

        return to_hta(self, ranks=ranks, include_last_step=include_last_step, exact=exact)
