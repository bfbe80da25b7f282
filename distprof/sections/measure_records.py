"""What probes recorded beside the traces: each rank alone, then all ranks combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distprof.artefacts.run_file import RunFile
from distprof.artefacts.settings_file import SettingsFile
from distprof.intervals import EMPTY, Intervals
from distprof.run.places import coordinates_of
from distprof.run.records import RecordSource
from distprof.run.run import Run
from distprof.sections.idle.measure import HostPauses, combine_pauses, host_pauses, measure_pauses
from distprof.sections.idle.result import PausesResult, RankPauses
from distprof.sections.job.measure import NO_RUN_DIRECTORY
from distprof.sections.measure_run import Mapper
from distprof.sections.memory.measure import combine_memory, measure_memory
from distprof.sections.memory.result import MemoryResult, RankMemory
from distprof.sections.moe.result import MoeResult
from distprof.sections.moe.routing import Routing, combine_routing, measure_routing
from distprof.sections.settings.measure import combine_settings
from distprof.sections.settings.result import SettingsResult
from distprof.sections.step_log.measure import StepLog, combine_step_logs, measure_step_log
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.telemetry.measure import combine_telemetry, measure_telemetry
from distprof.sections.telemetry.result import RankTelemetry, TelemetryResult
from distprof.units import name_ranks

__all__ = ["RecordResults", "measure_records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResults:
    """The results; rank number to what kept its training thread, step by step; routing logs."""

    step_log: StepLogResult
    memory: MemoryResult
    telemetry: TelemetryResult
    moe: MoeResult
    pauses: PausesResult
    settings: SettingsResult
    host: Mapping[int, HostPauses] = field(default_factory=dict)
    routing: tuple[Routing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRank:
    """What one rank's records say; small, so that it can cross a process boundary."""

    rank: int
    step_log: StepLog | None
    memory: RankMemory | None
    telemetry: RankTelemetry | None
    routing: Routing | None
    pauses: RankPauses | None
    settings: SettingsFile | None
    host: HostPauses
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker needs: a rank's records, and its analysed steps."""

    source: RecordSource
    windows: Intervals

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.source.rank


def measure_records(
    run: Run, *, executor: Mapper | None = None, windows: Mapping[int, Intervals] | None = None
) -> RecordResults:
    """Measure what probes recorded on every rank.

    Args:
        run: The recording; bare traces have no records.
        executor: Where ranks are measured, one rank's records in memory at a time and worker; None
            measures them here, one after another.
        windows: Rank to its analysed steps, own clock, for what sensors show during them.

    Returns:
        Results; each says in ``unavailable`` why it has nothing, or what was damaged.
    """
    known = windows or {}
    jobs = [_Job(run.records[rank], known.get(rank, EMPTY)) for rank in sorted(run.records)]
    results = map(_measure, jobs) if executor is None else executor.map(_measure, jobs)
    outcomes = list(results)
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    ranks = [outcome for outcome in outcomes if isinstance(outcome, _OfRank)]
    why = _Reasons(run.job, [*failed, *_folded_notes(ranks)])
    logs = [r.step_log for r in ranks if r.step_log]
    memory = [r.memory for r in ranks if r.memory]
    telemetry = [r.telemetry for r in ranks if r.telemetry]
    routing = [r.routing for r in ranks if r.routing]
    pauses = [r.pauses for r in ranks if r.pauses]
    settings = [r.settings for r in ranks if r.settings]
    places = coordinates_of(run.job) if run.job else {}
    return RecordResults(
        step_log=combine_step_logs(logs, (*why.notes, *why.of("step_log", logs))),
        memory=combine_memory(memory, why.of("memory", memory)),
        telemetry=combine_telemetry(telemetry, why.of("nvml", telemetry)),
        moe=combine_routing(routing, places, why.of("moe_routing", routing)),
        pauses=combine_pauses(pauses, why.of("pauses", pauses)),
        settings=combine_settings(settings, run.job, why.of("settings", settings)),
        host={rank.rank: rank.host for rank in ranks},
        routing=tuple(routing),
    )


def _measure(job: _Job) -> _OfRank:
    records = job.source.load()
    return _OfRank(
        rank=records.rank,
        step_log=measure_step_log(records),
        memory=measure_memory(records),
        telemetry=measure_telemetry(records, job.windows),
        routing=measure_routing(records),
        pauses=measure_pauses(records),
        settings=records.settings,
        host=host_pauses(records),
        notes=records.notes,
    )


def _folded_notes(ranks: Sequence[_OfRank]) -> list[str]:
    """Notes of all ranks, each said once with the ranks that say it."""
    said: dict[str, list[int]] = {}
    for rank in ranks:
        for note in rank.notes:
            said.setdefault(note, []).append(rank.rank)
    fold: Callable[[list[int]], str] = name_ranks
    return [f"{fold(numbers)}: {note}" for note, numbers in said.items()]


class _Reasons:
    """Why a probe's records are missing, by what its ranks say of it.

    Args:
        job: The job, None for bare traces.
        notes: What was damaged.
    """

    def __init__(self, job: RunFile | None, notes: Sequence[str]) -> None:
        self.notes = tuple(notes)
        self._job = job

    def of(self, probe: str, found: Sequence[Any]) -> tuple[str, ...]:
        """Reasons of ranks on which the probe did not work; empty where it worked or is unknown."""
        if self._job is None:
            return () if found else (NO_RUN_DIRECTORY,)
        reasons: dict[str, list[int]] = {}
        for entry in self._job.ranks:
            for status in entry.probes:
                if status.name == probe and status.state != "on":
                    why = status.reason.rstrip(".") or f"the probe was {status.state}"
                    reasons.setdefault(why, []).append(entry.rank)
        if reasons:
            return tuple(f"{why} ({name_ranks(ranks)})" for why, ranks in reasons.items())
        return () if found else ("nothing was recorded",)
