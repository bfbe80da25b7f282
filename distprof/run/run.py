"""Run: all data of one recording of a job, frozen after ingest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import NDArray

from distprof.artefacts.record import Gap
from distprof.artefacts.run_file import ErrorFile, RunFile
from distprof.run.records import RecordSource
from distprof.run.tables import RankTables
from distprof.run.topology import ProcessGroup, Topology
from distprof.schema import Bools, Floats, Int64Array, Table
from distprof.terms import StepSource
from distprof.units import name_ranks

_T = TypeVar("_T")
ANOTHER_JOB = "another-job"
"""A gap: data added to the recording belongs to another job."""

RECENT_STEPS = "recent-steps"
"""A gap: only the last steps are analysed, because all of them have too many collectives."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A number of rows that break an invariant, and of all rows that could."""

    count: int
    of: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerator of a rank. ``name`` is ``cpu`` for CPU-only traces, empty if unknown."""

    name: str
    count: int | None = None
    memory_bytes: int | None = None
    num_multiprocessors: int | None = None


LEAST_OPERATORS = 0.1
"""A trace with a smaller share of its operators was filtered. Whole ones have 1.0 or more, those of
CPU ranks 0.37 and more, because threads without rows also use up numbers."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of one file: counts of events and of problems with them."""

    num_events: int = 0  # Events kept or skipped on purpose.
    num_repaired: int = 0  # Events with invalid JSON that could be repaired.
    num_quarantined: int = 0  # Events that could not be read.
    num_clamped: int = 0  # Events with a negative or absurd duration, kept with duration 0.
    num_unlaunched: int = 0  # GPU activities without a launch record in the trace.
    lost_bytes: int = 0  # Uncompressed bytes after the last complete event of a truncated file.
    truncated: bool = False  # Whether the file is cut off.
    with_stack: bool = False  # Whether Python stacks were recorded.
    # Operators with a row over the numbers that the profiler gave to operators between two
    # collectives: about 1 in a whole trace; None if too few numbers are known.
    operator_ratio: float | None = None
    # Sentence that says why the GPU's activity is unknown; empty if it was recorded or the CPU did
    # the work.
    no_device: str = ""
    notes: tuple[str, ...] = ()  # Treatment of irregularities, one sentence each, at most a few.
    # Key of an invariant (:mod:`distprof.join.invariants`) to what breaks it.
    counts: Mapping[str, Count] = {}
    # Hash of a computation kernel's name to its number of launches and their duration in ns, for
    # the most frequent kernels.
    paces: Mapping[int, tuple[int, int]] = {}
    content: str = ""  # Hash of times and threads, equal only for copies; empty if unknown.
    kernels: Mapping[int, int] = {}  # Number of each complete step to its computation kernels.
    num_ranges: int = 0  # Operators and annotated ranges on the CPU.
    num_launches: int = 0  # Calls on the CPU that launch kernels.

    @property
    def is_filtered(self) -> bool:
        """Whether rows were removed after the profiler wrote them."""
        return self.operator_ratio is not None and self.operator_ratio < LEAST_OPERATORS


class TableSource(Protocol):
    """Source of a rank's tables: a cache file, or memory. Picklable."""

    @property
    def path(self) -> str:
        """The cache file, empty for memory."""
        ...

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables.

        Args:
            every_host_row: Whether to read all operators instead of only the CPU rows that analyses
                need, which are several times fewer.
        """
        ...


class TablesOf(msgspec.Struct, frozen=True):
    """Tables that are made of those of another source whenever they are loaded."""

    source: TableSource  # The tables as recorded.

    @property
    def path(self) -> str:
        """The cache file of the tables as recorded, empty for memory."""
        return self.source.path

    def light(self) -> Self:
        """The same for transfer to another machine."""
        return replace(self, source=light(self.source))


def light(content: _T) -> _T:
    """What is sent to another machine, without data that the receiver can read itself."""
    return content.light() if hasattr(content, "light") else content


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace says about its rank, its steps and itself."""

    world_size: int | None  # World size in the trace, None if missing.
    host: str | None  # Host name, None if unknown.
    backend: str  # Backend of the default group, for example ``nccl``; empty if unknown.
    device: Device  # The accelerator.
    versions: Mapping[str, str]  # Versions found in the trace, for example ``nccl`` and ``cuda``.
    capture_start_ns: int  # First event, own clock.
    capture_end_ns: int  # Last event, own clock.
    has_epoch: bool  # Whether times count from the epoch, which comparing ranks requires.
    step_source: StepSource  # Source of the steps.
    step_note: str  # One sentence on the source of the step windows.
    quality: Quality  # Quality of the file.


class Rank(TraceFacts, frozen=True, kw_only=True):
    """One rank of the run: the metadata of its trace, and the source of its tables."""

    rank: int  # Global rank.
    path: str  # The trace, as named by the user.
    # Source of the rank's number.
    rank_origin: Literal["trace", "run.json", "file name", "assumed"]
    groups: tuple[ProcessGroup, ...]  # Process groups this rank belongs to.
    steps: Table  # STEPS table.
    collectives: Table  # COLLECTIVES table.
    tables: TableSource  # Loads the other tables.

    def light(self) -> Rank:
        """This rank for transfer to another machine: its tables omit the collectives it holds."""
        return replace(self, tables=light(self.tables))


class CollectiveMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives recorded by two or more ranks, matched across ranks.

    Instance ``i`` has the members ``offsets[i]:offsets[i + 1]`` of ``member_rank`` and
    ``member_row``. Instances are in order of time.
    """

    offsets: Int64Array  # int64, shape ``(n + 1,)``.
    member_rank: NDArray[np.int32]  # int32, global rank of each member.
    member_row: NDArray[np.int32]  # int32, row of the member in its rank's COLLECTIVES table.
    group: NDArray[np.int32]  # int32, shape ``(n,)``, index into the topology's groups.
    kind: NDArray[np.int8]  # int8, shape ``(n,)``, a CollectiveKind.
    bytes: Int64Array  # int64, shape ``(n,)``, full buffer, or absent.
    method: NDArray[np.int8]  # int8, shape ``(n,)``, a MatchMethod.
    complete: Bools  # bool, shape ``(n,)``, whether every member of the group was found.
    num_candidates: int  # Rows of all ranks that could have had a partner among the ranks present.
    # Candidates that are members of a complete instance, or of one that includes every rank
    # present.
    num_matched: int
    # Ranks with rows that are unmatched because they fit those of others in several ways about
    # equally well.
    ambiguous_ranks: tuple[int, ...] = ()
    # Ranks whose collectives of equal sequence numbers do not end together: the numbers of at least
    # one of them are wrong.
    misnumbered_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()  # Assumptions and problems of the matching, one sentence each.

    @property
    def count(self) -> int:
        """Number of matched instances."""
        return len(self.group)

    @property
    def matched_ratio(self) -> float | None:
        """Share of candidates that found their partners; None without candidates."""
        return self.num_matched / self.num_candidates if self.num_candidates else None

    @staticmethod
    def none() -> CollectiveMatches:
        """Matches without any instance, as for a single rank."""
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
        )


class ClockAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections that put all ranks on one clock, with the uncertainty that remains.

    A clock domain is a set of ranks that share a clock (one host). If hosts are unknown, each rank
    is a domain. ``common = own - offset_ns[d] - drift_ratio[d] * (own - reference_ns)``.
    """

    domains: tuple[tuple[int, ...], ...]  # Ranks of each domain.
    names: tuple[str, ...]  # Name of each domain: the node, or ``rank N``.
    offset_ns: Floats  # float64 per domain, at ``reference_ns``.
    drift_ratio: Floats  # float64 per domain, dimensionless (20 ppm = 2e-5).
    reference_ns: int  # Time on the own clocks at which the offsets hold.
    # int64 per domain: 95th percentile of the distance of its members' collective ends from the
    # common end, after correction; ABSENT if not measured.
    residual_ns: Int64Array
    component: NDArray[np.int32]  # int32 per domain: only domains of one component can be compared.
    # int64 per domain: uncertainty of a time difference between two of its ranks; None if the
    # residual applies.
    within_ns: Int64Array | None = None
    num_checked: int = 0  # Matched symmetric collectives and messages tested for causality.
    # Those that violate causality by more than the residual, for example if a member ends before
    # the last one starts.
    num_violations: int = 0
    notes: tuple[str, ...] = ()  # Assumptions and problems, one sentence each.
    # Name of each node whose ranks turned out to have separate clocks, to the largest difference
    # between them.
    split_ns: Mapping[str, int] = {}
    _domain_of: dict[int, int] = {}

    def __post_init__(self) -> None:
        index = {rank: i for i, ranks in enumerate(self.domains) for rank in ranks}
        force_setattr(self, "_domain_of", index)

    def domain_of(self, rank: int) -> int:
        """Index of the domain of ``rank``."""
        if rank not in self._domain_of:
            raise ValueError(f"rank {rank} is not in any clock domain")
        return self._domain_of[rank]

    def correction(self, rank: int, own_ns: Int64Array) -> Int64Array:
        """Correction to subtract from times of ``rank`` on its own clock, int64 ns."""
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
    """The part of the recording to analyse, which all ranks share."""

    # Step numbers that every rank recorded completely, ascending; empty if no rank has step marks
    # (then each rank's whole capture is one window).
    steps: tuple[int, ...]
    # Steps left out, with the reason, for example ``{10: "cut by the capture"}``.
    dropped: Mapping[int, str] = {}
    # Time that all captures share / time that any of them covers, on the common clock; None for a
    # single rank or clocks that cannot be compared.
    overlap_ratio: float | None = None
    # Steps left out because starting the profiler disturbs them.
    transient_steps: tuple[int, ...] = ()
    # Instances whose wait may come from starting the profiler, ascending.
    start_waits: Int64Array = np.empty(0, np.int64)
    start_wait_ns: int = 0  # Wait in the start_waits in analysed steps, mean per rank and step.


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One recording of a job: its ranks, topology, matched collectives, clock and gaps."""

    source: str  # Path that the user named.
    ranks: tuple[Rank, ...]  # Ranks that could be read, ascending.
    topology: Topology  # Nodes, groups and axes.
    matches: CollectiveMatches  # Collectives matched across ranks.
    clock: ClockAlignment  # Alignment of the ranks' clocks.
    window: CaptureWindow  # The part of the recording to analyse.
    gaps: tuple[Gap, ...] = ()  # Missing or damaged evidence.
    job: RunFile | None = None  # The run.json of a run directory; None for bare traces.
    # Rank number to its probe records, including ranks that were not traced.
    records: Mapping[int, RecordSource] = {}
    # Errors that stopped the Python code of ranks, in order of time.
    errors: tuple[ErrorFile, ...] = ()
    run_dir: str = ""  # The run directory, empty for bare traces.
    # Kind of log or table of the source, for display; empty for traces and run directories.
    origin: str = ""
    # Evidence from logs and tables by type, at most one of each: see :meth:`get`.
    evidence: Mapping[type, Any] = {}

    def __repr__(self) -> str:
        """One line, as the ranks hold whole tables."""
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
        """The rank with that number."""
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
        """The evidence of that type, for example ``NcclLog``; None without any."""
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
            ranks: Ranks to convert, None for all. HTA keeps all of them in memory.
            include_last_step: Whether to keep the last of several profiler steps, which HTA drops.
            exact: Whether to keep fractions of microseconds instead of rounding as HTA does.

        Raises:
            MissingExtraError: If HTA is not installed (extra ``hta``).
            InputError: If the run was opened without host rows.
            ValueError: If a rank is not part of the run.
        """
        from distprof.run.hta_bridge import to_hta  # HTA brings plotly and networkx

        return to_hta(self, ranks=ranks, include_last_step=include_last_step, exact=exact)
