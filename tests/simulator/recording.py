"""What a simulated job left behind: the truth, and the traces that show part of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distprof.terms import CollectiveKind
from tests.simulator.job import SimulatedJob

if TYPE_CHECKING:
    from distprof.run.records import RecordSource
    from distprof.run.run import Rank


@dataclass(kw_only=True)
class Instance:
    """One collective (or message) of the job. Times are true times since the job's start."""

    axis: str
    ranks: tuple[int, ...]
    members: tuple[int, ...]  # = ranks, or the two ends of a message
    seq: int
    kind: CollectiveKind
    bytes: int
    step: int
    end_ns: float = 0.0
    start_ns: dict[int, float] = field(default_factory=dict)
    in_splits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    out_splits: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def last_rank(self) -> int:
        return max(self.start_ns, key=lambda rank: self.start_ns[rank])

    @property
    def last_start_ns(self) -> float:
        return max(self.start_ns.values())

    def wait_ns(self, rank: int) -> float:
        """How long that member waited for the last one."""
        return self.last_start_ns - self.start_ns[rank]


@dataclass(frozen=True, kw_only=True)
class DeviceEvent:
    start: float
    end: float
    name: str
    kind: Literal["computation", "communication", "copy", "annotation"]
    stream: int
    correlation: int
    step: int
    blocks: int = -1
    bytes: int = -1


@dataclass(frozen=True, kw_only=True)
class HostEvent:
    start: float
    end: float
    name: str
    category: str
    correlation: int = -1
    thread: str = "main"


@dataclass(frozen=True, kw_only=True)
class CommEvent:
    instance: Instance
    kind: CollectiveKind  # send or recv for a message
    start: float
    end: float
    enqueue: float
    stream: int
    correlation: int
    name: str


@dataclass(kw_only=True)
class RankLog:
    """All that happened on one rank, in true time; the trace shows what lies in its capture."""

    rank: int
    device: list[DeviceEvent] = field(default_factory=list)
    host: list[HostEvent] = field(default_factory=list)
    comm: list[CommEvent] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    collections: list[tuple[int, float, float]] = field(default_factory=list)
    begin: float = 0.0
    finish: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The outcome of a simulated job.

    Args:
        job: What was simulated.
        logs: By rank.
        instances: Every collective and message, in order of their ends.
    """

    job: SimulatedJob
    logs: tuple[RankLog, ...]
    instances: tuple[Instance, ...]

    @property
    def present(self) -> tuple[int, ...]:
        return self.job.present or tuple(range(self.job.world_size))

    def lost_ns(self, step: int) -> dict[int, float]:
        """What each rank cost a typical other member in a step, overlapped or not.

        For each collective the last rank is charged the mean wait of the other members.
        """
        lost: dict[int, float] = {}
        for instance in self.instances:
            if instance.step != step or len(instance.members) < 2:
                continue
            last = instance.last_rank
            waits = [instance.wait_ns(rank) for rank in instance.members if rank != last]
            lost[last] = lost.get(last, 0.0) + sum(waits) / len(waits)
        return lost

    def mean_step_ns(self, steps: Collection[int] | None = None) -> float:
        """Mean over ranks and over these steps, all when None."""
        spans = [
            end - begin
            for log in self.logs
            for step, begin, end in self.step_windows(log.rank)
            if steps is None or step in steps
        ]
        return sum(spans) / len(spans)

    def step_windows(self, rank: int) -> list[tuple[int, float, float]]:
        """The host's steps if it waits for the device, else from first kernel to first kernel."""
        log = self.logs[rank]
        if self.job.synchronise:
            return log.steps
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        for event in log.device:
            first[event.step] = min(first.get(event.step, event.start), event.start)
            last[event.step] = max(last.get(event.step, event.end), event.end)
        steps = sorted(first)
        ends = [first[step] for step in steps[1:]] + [last[steps[-1]]]
        return [(step, first[step], end) for step, end in zip(steps, ends, strict=True)]

    def costliest_rank(self) -> int:
        """The rank that cost the others most over all steps."""
        total: dict[int, float] = {}
        for step in self.job.steps:
            for rank, ns in self.lost_ns(step).items():
                total[rank] = total.get(rank, 0.0) + ns
        return max(total, key=lambda rank: total[rank])

    def capture(self, rank: int) -> tuple[float, float]:
        """True times at which the rank's capture starts and ends."""
        log = self.logs[rank]
        skip = self.job.capture_skip.get(rank, 0)
        cut = self.job.capture_cut.get(rank, 0)
        ends = sorted(event.end for event in log.comm)
        starts = sorted(event.start for event in log.comm)
        begin = ends[skip - 1] if skip else log.begin
        finish = starts[len(starts) - cut] if cut else log.finish
        return begin, finish

    def to_ranks(
        self,
        *,
        with_seq: bool = True,
        with_groups: bool = True,
        with_steps: bool = True,
        with_hosts: bool = True,
        with_host_rows: bool = True,
    ) -> list[Rank]:
        """The ranks that are present, as ingest would give them, tables in memory.

        Args:
            with_seq: Whether collectives have sequence numbers.
            with_groups: Whether collectives have group, members and size.
            with_steps: Whether the traces have step marks.
            with_hosts: Whether host names are known.
            with_host_rows: Whether the HOST table has rows.
        """
        from tests.simulator.tables import TraceDetail, rank_of

        detail = TraceDetail(
            seq=with_seq,
            groups=with_groups,
            steps=with_steps,
            hosts=with_hosts,
            host_rows=with_host_rows,
        )
        return [rank_of(self, rank, detail) for rank in self.present]

    def to_records(self) -> dict[int, RecordSource]:
        """What probes would have recorded of the ranks that are present: step log, pauses, …"""
        from tests.simulator.records import records_of

        return {rank: records_of(self, rank) for rank in self.present}

    def write_kineto(self, folder: Path, *, with_seq: bool = True) -> list[Path]:
        """Write one ``HOST_PID.TIME.pt.trace.json.gz`` per present rank; returns their paths."""
        from tests.simulator.kineto import write_rank

        folder.mkdir(parents=True, exist_ok=True)
        return [write_rank(self, rank, folder, with_seq=with_seq) for rank in self.present]
