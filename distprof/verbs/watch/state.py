"""State of a watched job, updated from its records; it reads no clock and no file."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import NvmlRecord, StepRecord
from distprof.artefacts.run_file import AttachFile, ErrorFile, Exit, Overhead, RunFile
from distprof.escape import plain, shorten
from distprof.ingest.job import is_running
from distprof.ingest.job.growing import MAX_RANKS, Added, RankAdded
from distprof.join.gpu_waits import (
    Rests,
    excess_of_peers,
    lateness_of,
    mean_without_longest,
    waits_of,
)
from distprof.schema import Floats
from distprof.units import NS_PER_S, format_bytes, format_duration, format_ratio
from distprof.verbs.watch import WINDOW, JobSpeed, Lasting, SlowRanks, StepTable, WaitTable
from distprof.verbs.watch.alerts import JOB, Alarms, Condition
from distprof.verbs.watch.show import ENDED, Alert, JobState, MemoryOfRank, ThrottledRank

SAMPLES: Final = 300  # 30 s at the default period
LEAST_SAMPLES: Final = 20
HARMFUL: Final = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""Throttle reasons that count. The power cap does not: GPUs under full load run at it."""
TIMES: Final = "collective_times"
"""The probe that records how long collectives take on the GPU."""
_MAX_MESSAGE = 160  # characters of a message from another program


class RankWatch:
    """State of one rank; ``is_alive`` is None for processes of other machines."""

    def __init__(
        self, rank: int, is_alive: Callable[[AttachFile], bool | None] = is_running
    ) -> None:
        self.rank = rank
        self.device = ""  # Name of its accelerator, or ``cpu``; empty while unknown.
        self.coordinates: dict[str, int] = {}  # Its index along each mesh axis.
        # Why its probe does not record the durations of collectives; empty if it does, or if the
        # reason is unknown.
        self.why_untimed = ""
        self.probe_cost: Overhead | None = None  # Of its always-on probes; None until measured.
        self.has_ended = False  # Whether its probes stopped cleanly.
        self.last_step: int | None = None  # Last step that it completed; None before the first.
        self.ended_ns = 0  # End of that step on its own clock, ns since the epoch.
        self.seen_s = 0.0  # When the watcher saw that step, on a monotonic clock, seconds.
        self._is_alive = is_alive
        self._error: ErrorFile | None = None
        self.exit: Exit | None = None  # How its process ended, as the launcher says.
        self._process: AttachFile | None = None
        self._was_alive = False
        self._samples: deque[NvmlRecord] = deque(maxlen=SAMPLES)
        self.memory: MemoryOfRank | None = None  # Its latest use; None if unknown.

    def take(self, added: RankAdded) -> None:
        """Update everything but steps."""
        if added.said is not None:
            self.device, self.coordinates = added.said.device, added.said.coordinates
            self.has_ended = added.said.ended_ns is not None
            reasons = (probe.reason for probe in added.said.probes if probe.name == TIMES)
            self.why_untimed = shorten(plain(next(reasons, "")), _MAX_MESSAGE)
            always_on = (each for each in added.said.overhead if each.mode == "always_on")
            self.probe_cost = next(always_on, None)
        self._error = added.error or self._error
        self.exit = added.exit or self.exit
        self._process = added.process or self._process
        self._samples.extend(added.samples)
        for record in added.memory[-1:]:
            where: Literal["device", "process"] = "device"
            used = record.allocated_bytes
            if used is None:
                where, used = "process", record.rss_bytes
            if used is not None:
                self.memory = MemoryOfRank(rank=self.rank, used_bytes=used, where=where)

    def begin_again(self) -> None:
        """Forget its last step and how it ended: the rank was restarted."""
        self.last_step = None
        self._error = self.exit = None

    @property
    def can_report(self) -> bool:
        """Whether it may still report steps."""
        return not self.has_ended and not self.loss

    @property
    def loss(self) -> str:
        """Evidence that the rank is lost, in one sentence; empty if there is none."""
        error, ended = self._error, self.exit
        if error is not None:
            message = f"{error.kind}: {shorten(plain(error.message), _MAX_MESSAGE)}"
            return "" if error.is_peer_loss else plain(message)
        if ended is not None and not ended.by_launcher:
            if ended.signal:
                return f"killed by {plain(ended.signal)}"
            if ended.code:
                return f"exited with code {ended.code}"
        return ""

    def is_gone(self) -> bool:
        """Whether its process was seen alive on this machine and is gone without an error."""
        if self._process is None or self.has_ended or self._error or self.exit:
            return False
        alive = self._is_alive(self._process)
        self._was_alive = self._was_alive or alive is True
        return self._was_alive and alive is False

    def throttled(self) -> ThrottledRank | None:
        """How often heat or hardware throttled its GPU; None if it did not, or if unknown."""
        known = [each for each in self._samples if each.throttle_reasons is not None]
        reasons = Counter(
            reason for each in known for reason in each.throttle_reasons or () if reason in HARMFUL
        )
        if len(known) < LEAST_SAMPLES or not reasons:
            return None
        num_throttled = sum(not HARMFUL.isdisjoint(each.throttle_reasons or ()) for each in known)
        return ThrottledRank(
            rank=self.rank,
            throttled_ratio=num_throttled / len(known),
            reasons=tuple(reason for reason, _ in reasons.most_common()),
            sm_clock_mhz=known[-1].sm_clock_mhz,
        )


SETTLE: Final = 3
"""Number of first steps that are ignored, because caches are cold."""
STAGE: Final = "pp"
LEAST_SILENCE_S: Final = 30.0
LONGER_THAN_BEFORE: Final = 2.0
"""A job that pauses for checkpoints or evaluation is stalled when a pause is twice as long."""
BEHIND: Final = 3  # steps
LEAST_BEHIND_S: Final = 10.0


class OwnTimes(NamedTuple):
    """Own time of each rank in some steps, all of shape (steps, ranks); NaN if unknown."""

    own_ns: Floats  # Own time; on GPU ranks a lower bound that includes transfers.
    late_ns: Floats  # Excess over the own time of the peers; on GPU ranks a lower bound.
    late_most_ns: Floats  # Upper bound of ``late_ns``.
    # ``late_ns`` as a share of the peers' own time; on GPU ranks see
    # :class:`~distprof.join.gpu_waits.Lateness`.
    excess: Floats
    step_ns: Floats  # Duration of the step, of a shape that broadcasts with the others.


class JobWatch:
    """State of one watched job."""

    def __init__(self, source: str, levels: Mapping[str, float]) -> None:
        self.source = source
        self.levels = dict(levels)
        self.alarms = Alarms(source)
        self.run: RunFile | None = None  # Content of run.json; None while there is none.
        self._begin()

    def _begin(self) -> None:
        self.ranks: dict[int, RankWatch] = {}
        self.table = StepTable()  # The last steps of all ranks.
        self.waits = WaitTable()  # Collectives of GPU ranks in steps that are incomplete.
        self._waited: deque[OwnTimes] = deque(maxlen=WINDOW)
        self._durations_ns: deque[float] = deque(maxlen=WINDOW)
        self._rests = Rests(WINDOW)
        self.slow = SlowRanks(self.levels.get("slow-rank", 0.10), 0)
        self.speed = JobSpeed(self.levels.get("slow-job", 0.20))
        self.has_gpus = False
        self.waiting = Lasting()
        self.step: int | None = None  # Last complete step; None before the first.
        self.notes: tuple[str, ...] = ()  # Remarks on files.
        self.progress_s: float | None = None
        self._restarted: set[int] = set()
        self._longest_gap_s = 0.0
        self._step_s = 0.0

    def take(self, added: Added, *, now_s: float, now_ns: int) -> list[Alert]:
        """Update the state with the added records; return alerts that began or ended."""
        if added.is_another_run:
            self._begin()
        if added.run is not None:
            self.run = added.run
            self._add_ranks([entry.rank for entry in added.run.ranks[:MAX_RANKS]])
            for entry in added.run.ranks[:MAX_RANKS]:
                watched = self.ranks[entry.rank]
                watched.exit = entry.exit or watched.exit
        self.notes = tuple(_remarks(added))
        self._add_ranks([each.rank for each in added.ranks])
        for each in added.ranks:
            self.ranks[each.rank].take(each)
        self._take_steps(added.ranks, now_s, now_ns)
        devices = {self.ranks[each.rank].device for each in added.ranks}
        self.has_gpus = self.has_gpus or bool(devices - {"", "cpu"})
        for step in self.table.complete(
            np.array([self.ranks[number].can_report for number in self.table.ranks], dtype=np.bool_)
        ):
            self._judge(step)
        self._take_waits(added.ranks)
        return self.alarms.observe(self._conditions(now_s), step=self.step, now_ns=now_ns)

    @property
    def state(self) -> JobState:
        """State of the job, which does not say whether it has stalled."""
        if self.run is not None and self.run.outcome in ENDED:
            return self.run.outcome
        known = len(self.ranks) >= ((self.run and self.run.world_size) or 1)
        if known and all(not rank.can_report for rank in self.ranks.values()):
            return "failed" if any(rank.loss for rank in self.ranks.values()) else "completed"
        return "waiting" if self.step is None else "running"

    def silent_s(self, now_s: float) -> float | None:
        """Seconds since a rank last completed a step; None before the first."""
        return None if self.progress_s is None else now_s - self.progress_s

    def is_stalled(self, now_s: float) -> bool:
        """Whether no rank has completed a step for much longer than this job ever paused."""
        silent_s = self.silent_s(now_s)
        if silent_s is None or self.state in ENDED:
            return False
        times = self.levels.get("stalled", 20.0) * self._step_s
        return silent_s > max(LEAST_SILENCE_S, times, LONGER_THAN_BEFORE * self._longest_gap_s)

    def losses(self, now_s: float) -> dict[int, str]:
        """Lost ranks, and one sentence of evidence for each."""
        if self.state in ("completed", "interrupted"):
            return {}
        failure = self.run.failure if self.run is not None else None
        if failure is not None and failure.rank is not None:  # the launcher knows who was first
            return {failure.rank: plain(failure.message).rstrip(".")}
        found = {n: r.loss or self._absence(r, now_s) for n, r in sorted(self.ranks.items())}
        return {number: evidence for number, evidence in found.items() if evidence}

    def _absence(self, rank: RankWatch, now_s: float) -> str:
        """Evidence that a rank has gone or fallen silent."""
        if not rank.can_report:
            return ""
        if now_s - rank.seen_s >= 1.0 and rank.is_gone():
            return "its process is gone"
        newest = int(self.table.last_step.max(initial=-1))
        if rank.last_step is None or newest - rank.last_step < BEHIND:
            return ""
        behind_s = (self.table.usual_end_ns - rank.ended_ns) / NS_PER_S
        if behind_s < max(LEAST_BEHIND_S, self.levels.get("stalled", 20.0) * self._step_s):
            return ""
        return f"no step for {behind_s:.0f} s, while others are at step {newest:,}"

    # Steps ----------------------------------------------------------------------------------------

    def _add_ranks(self, numbers: Sequence[int]) -> None:
        """Start to watch those of these ranks that are new."""
        for number in numbers:
            if number not in self.ranks:
                self.ranks[number] = RankWatch(number)
        self.table.know(numbers)
        self.slow.grow(len(self.table.ranks))

    def _take_steps(self, ranks: tuple[RankAdded, ...], now_s: float, now_ns: int) -> None:
        records = [(record, each.rank) for each in ranks for record in each.steps]
        if not records:
            return
        self._restarted |= {rank for record, rank in records if self._begins_again(record, rank)}
        if 2 * len(self._restarted) > len(self.ranks):
            kept, run = self.ranks, self.run
            self._begin()
            self.run = run
            for rank in kept.values():
                rank.begin_again()
            self.ranks |= kept
            self._add_ranks(list(kept))
        records.sort(key=lambda found: found[0].step)
        for record, number in records:
            rank = self.ranks[number]
            self.table.add(number, record)
            rank.last_step, rank.ended_ns = record.step, record.end_ns
            rank.seen_s = now_s
        for each in ranks:
            for pause in each.pauses:
                if pause.kind == "input" and pause.step is not None and not pause.in_phase:
                    self.table.add_input(each.rank, pause.step, pause.end_ns - pause.start_ns)
        silent_s = self.silent_s(now_s)
        if silent_s is None:  # the first look: the job may have stopped before
            self.progress_s = now_s - max(now_ns - self.table.usual_end_ns, 0) / NS_PER_S
            return
        if not self.is_stalled(now_s):
            self._longest_gap_s = max(self._longest_gap_s, silent_s)
        self.progress_s = now_s

    def _begins_again(self, record: StepRecord, number: int) -> bool:
        """Whether the rank repeats step numbers, as after a restart in the same directory."""
        rank = self.ranks[number]
        is_earlier = rank.last_step is not None and 0 <= record.step <= rank.last_step
        return is_earlier and record.start_ns >= rank.ended_ns

    def _judge(self, step: int) -> None:
        """Update speed, lateness and input with a complete step."""
        self.step = step
        durations = self.table.of("step_ns", [step])[0]
        step_ns = float(np.nanmedian(durations))
        self._step_s = step_ns / NS_PER_S
        if step < SETTLE or self.table.is_traced(step):
            return
        self.speed.observe(round(step_ns), has_gpus=self.has_gpus)
        self._durations_ns.append(step_ns)
        if not self.waits.ranks:
            self.slow.observe(self._own_of_cpus([step])[0], step_ns, self.groups())
        inputs = self.table.of("input_ns", [step])[0]
        of = self.speed.recent_ns if self.has_gpus else durations
        share = float(np.nanmedian(inputs / of))
        self.waiting.observe(share > self.levels.get("input", 1.0))

    def typical_ns(self, steps: list[int]) -> float:
        """Duration of these steps: the median, on GPU ranks the mean; NaN if unknown."""
        of_ranks = self.table.of("step_ns", steps)
        if not np.isfinite(of_ranks).any():
            return float("nan")
        if not self.has_gpus:
            return float(np.nanmedian(of_ranks))
        known = of_ranks[np.isfinite(of_ranks).any(axis=1)]
        return float(np.nanmedian(known, axis=1).mean())

    def _take_waits(self, ranks: tuple[RankAdded, ...]) -> None:
        """Add durations of collectives on GPUs, and judge the steps that all ranks reported."""
        for each in ranks:
            is_on_gpu = self.ranks[each.rank].device != "cpu"
            for record in each.collectives if is_on_gpu else ():
                self.waits.add(each.rank, record)
        watched = self.ranks.items()
        living = {number for number, rank in watched if rank.can_report}
        stages = {n: rank.coordinates[STAGE] for n, rank in watched if STAGE in rank.coordinates}
        for step, found in self.waits.complete(living):
            if self._durations_ns and step >= SETTLE and not self.table.is_traced(step):
                # A CPU that runs ahead of its GPU waits for it only now and then, so single steps
                # are too short or too long. The longest may contain a checkpoint.
                step_ns = float(mean_without_longest(np.array(self._durations_ns)))
                waits = waits_of(step, found, self.table.ranks, stages, step_ns, self._rests)
                groups = self.groups()
                late = lateness_of(waits, step_ns, groups)
                excess = self.slow.observe_bounds(late, step_ns, groups)
                own = np.maximum(step_ns - waits.most_ns, 0.0)
                times = (own, late.late_ns, late.late_most_ns, excess, np.array([step_ns]))
                self._waited.append(OwnTimes(*times))

    def own_times(self, steps: list[int]) -> OwnTimes:
        """Own time of all ranks in these steps, the last complete ones.

        They apply to CPU ranks only: collectives of GPU ranks arrive a few seconds later, so theirs
        are the last steps with all collectives.
        """
        if self.waits.ranks:
            sizes = (*[len(self.table.ranks)] * 4, 1)
            rows = [[step[field] for step in self._waited] for field in range(len(sizes))]
            return OwnTimes(*map(_stacked, rows, sizes))
        own, groups = self._own_of_cpus(steps), self.groups()
        peers = np.array([excess_of_peers(row, groups)[1] for row in own]).reshape(own.shape)
        late = own - peers
        return OwnTimes(own, late, late, own / peers - 1, self.table.of("step_ns", steps))

    def _own_of_cpus(self, steps: list[int]) -> Floats:
        """Own time of each CPU rank in these steps, ns; NaN if unknown, and for GPU ranks."""
        own = self.table.own(steps)
        own[:, [self.ranks[number].device != "cpu" for number in self.table.ranks]] = np.nan
        return own

    def groups(self) -> NDArray[np.int64]:
        """Pipeline stage of each rank: ranks of different stages do different work."""
        stages = [self.ranks[number].coordinates.get(STAGE, 0) for number in self.table.ranks]
        return np.array(stages, dtype=np.int64)

    # What holds now -------------------------------------------------------------------------------

    def _conditions(self, now_s: float) -> dict[str, Condition]:
        usual, now = format_duration(self.speed.usual_ns), format_duration(self.speed.recent_ns)
        losses = self.losses(now_s)
        limit = format_ratio(self.levels.get("input", 1.0))
        found = {
            "slow-rank": self._slow_ranks(),
            "slow-job": _of_job(
                self.speed.state.is_on,
                f"steps take longer than before: {now} instead of the usual {usual}",
            ),
            "rank-lost": Condition(frozenset(losses), "", losses),
            "stalled": _of_job(
                self.is_stalled(now_s),
                f"no rank has completed a step for {self.silent_s(now_s) or 0:.0f} s",
            ),
            "input": _of_job(
                self.waiting.is_on, f"ranks wait for input for more than {limit} of the step"
            ),
            "throttling": self._throttled(),
            "memory": self._memory(),
        }
        return {kind: found[kind] for kind in found if kind in self.levels}

    def _slow_ranks(self) -> Condition:
        columns = np.flatnonzero(self.slow.state.is_on).tolist()
        if not columns:
            return Condition(frozenset(), "")
        several = len(columns) > 1
        worst = format_ratio(float(np.nanmax(self.slow.typical_excess(columns))))
        words = f"own time is {'up to ' if several else ''}{worst} above that of the peers"
        if self.waits.ranks:
            least = f"{'on one of them ' if several else ''}by at least {worst}"
            words = f"own time up to a collective is above that of the peers, {least}"
        return Condition(frozenset(self.table.ranks[column] for column in columns), words)

    def _throttled(self) -> Condition:
        level, raised = self.levels.get("throttling", 1.0), self._raised("throttling")
        found = filter(None, (rank.throttled() for rank in self.ranks.values()))
        on = frozenset(
            each.rank
            for each in found
            if each.throttled_ratio >= (level / 2 if each.rank in raised else level)
        )
        return Condition(on, "heat or hardware throttles the GPU")

    def _memory(self) -> Condition:
        level, raised = self.levels.get("memory", float("inf")), self._raised("memory")
        uses = [rank.memory for rank in self.ranks.values() if rank.memory]
        on = frozenset(
            use.rank for use in uses if use.used_bytes > level * (0.95 if use.rank in raised else 1)
        )
        return Condition(on, f"more than {format_bytes(level)} of memory in use" if on else "")

    def _raised(self, kind: str) -> frozenset[int]:
        return frozenset(
            rank for alert in self.alarms.raised() if alert.kind == kind for rank in alert.ranks
        )


def _stacked(rows: Sequence[Floats], size: int) -> Floats:
    """Stack the steps; ranks that were added later are NaN in earlier steps."""
    table: Floats = np.full((len(rows), size), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def _of_job(holds: bool, words: str) -> Condition:
    return Condition(frozenset((JOB,) if holds else ()), words)


def _remarks(added: Added) -> Iterator[str]:
    if not added.is_there:
        yield "The run directory does not exist."
    if added.num_bad_lines:
        yield f"Skipped {added.num_bad_lines:,} damaged lines."
    yield from (f"{problem}." for problem in added.problems[:3])
