"""Declares the metric families that exporters send, from a report and from a live run.

Names follow the conventions of Prometheus and OpenMetrics: base units, ``_total`` for counters,
``_ratio`` for shares. The only labels are ``rank`` (at most :data:`MAX_RANKS` values; larger jobs
send only metrics of the whole job), ``phase`` (five values) and ``state`` (three values). The
number of series is therefore bounded.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from distprof.artefacts import REPORT_FILE
from distprof.artefacts.records import StepRecord
from distprof.documents.saved import load_report
from distprof.errors import DistprofError
from distprof.ingest.job.growing import LiveRank, LiveRun
from distprof.ingest.recognise import Kind, kind_of
from distprof.sections.metrics import METRICS

if TYPE_CHECKING:
    from distprof.documents.saved import Report

MAX_RANKS = 256
"""Maximum number of ranks in a job for separate series per rank."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric family."""

    name: str  # Name with its unit; names of counters end in ``_total``.
    kind: Literal["gauge", "counter"]  # ``counter`` for values that only grow while the job runs.
    meaning: str  # Description, one sentence.
    labels: tuple[str, ...] = ()  # Names of its labels.


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A current value of a family."""

    labels: tuple[str, ...]  # Values of the labels of the family.
    value: float  # Value in base units.


SampledFamilies: TypeAlias = Mapping[Family, Sequence[Sample]]


# Of a report --------------------------------------------------------------------------------------


def families_of_report(report: Report) -> SampledFamilies:
    """The metrics of a report; unknown metrics are not sent."""
    known = report.metrics()
    return {
        family: (Sample(labels=(), value=known[name]),)
        for name, family in _OF_REPORT.items()
        if name in known
    }


# ``_count`` is a suffix of histograms in OpenMetrics
_OF_REPORT = {
    metric.name: Family(
        name=f"distprof_report_{metric.name.removesuffix('_count')}",
        kind="gauge",
        meaning=metric.meaning,
    )
    for metric in METRICS
}


# Of a live run ------------------------------------------------------------------------------------

Read = Callable[[LiveRank], float | None]


def _rank(name: str, kind: Literal["gauge", "counter"], meaning: str) -> Family:
    return Family(name=f"distprof_{name}", kind=kind, meaning=meaning, labels=("rank",))


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _of_memory(field: str) -> Read:
    return lambda rank: getattr(rank.memory, field, None)


def _of_sensors(field: str, factor: float = 1) -> Read:
    def read(rank: LiveRank) -> float | None:
        value = getattr(rank.sensors, field, None)
        return None if value is None else value * factor

    return read


_OF_RANK: Mapping[Family, Read] = {
    _rank("steps_total", "counter", "Steps that the rank completed."): lambda r: r.num_steps,
    _rank("step_seconds_total", "counter", "Time of these steps."): lambda r: r.steps_ns / 1e9,
    _rank("tokens_total", "counter", "Tokens of these steps."): lambda r: r.tokens,
    _rank("samples_total", "counter", "Samples of these steps."): lambda r: r.samples,
    _rank(
        "last_step_end_timestamp_seconds", "gauge", "End of the last step, since the epoch."
    ): lambda r: _seconds(None if r.last is None else r.last.end_ns),
    _rank("loss", "gauge", "Loss of the last step."): lambda r: getattr(r.last, "loss", None),
    _rank(
        "collective_seconds_total",
        "counter",
        "Time of collectives and messages on the GPU, including waits for other ranks.",
    ): lambda r: _seconds(r.collectives_ns),
    _rank("memory_allocated_bytes", "gauge", "Memory of tensors on the GPU."): _of_memory(
        "allocated_bytes"
    ),
    _rank("memory_resident_bytes", "gauge", "Resident memory of the process."): _of_memory(
        "rss_bytes"
    ),
    _rank("gpu_power_watts", "gauge", "Power of the GPU."): _of_sensors("power_w"),
    _rank("gpu_temperature_celsius", "gauge", "Temperature of the GPU."): _of_sensors(
        "temperature_c"
    ),
    _rank("gpu_sm_clock_hertz", "gauge", "Clock of the GPU."): _of_sensors("sm_clock_mhz", 1e6),
    _rank("gpu_utilization_ratio", "gauge", "Share of time with a kernel running."): _of_sensors(
        "gpu_utilization_ratio"
    ),
}

_PHASES = Family(
    name="distprof_phase_seconds_total",
    kind="counter",
    meaning="Time of a phase of the steps: input, forward, backward, optimizer or other.",
    labels=("rank", "phase"),
)

_THREAD = Family(
    name="distprof_thread_seconds_total",
    kind="counter",
    meaning=(
        "Time of the training thread in the steps: running on a CPU, waiting_for_cpu, or "
        "waiting_for_input. On CPU ranks, the sum is the rank's own time."
    ),
    labels=("rank", "state"),
)

_JOB_RANKS = Family(name="distprof_job_ranks", kind="gauge", meaning="Ranks that completed a step.")
_JOB_STEPS = Family(
    name="distprof_job_steps_total",
    kind="counter",
    meaning="Steps that all of these ranks completed.",
)
_JOB_MEDIAN = Family(
    name="distprof_job_step_median_seconds",
    kind="gauge",
    meaning="Median over ranks of the median duration of their last steps.",
)
_JOB_SLOWEST = Family(
    name="distprof_job_step_slowest_seconds",
    kind="gauge",
    meaning="Median duration of the last steps on the slowest rank.",
)
_JOB_BAD = Family(
    name="distprof_job_bad_lines_total",
    kind="counter",
    meaning="Lines of records that could not be read.",
)


def families_of_run(run: LiveRun) -> SampledFamilies:
    """The families of a live run, as of the last look at it."""
    begun = [rank for rank in run.ranks.values() if rank.num_steps]
    found = _of_job(begun, list(run.ranks.values()))
    return found if len(run.ranks) > MAX_RANKS else {**found, **dict(_of_ranks(begun))}


def _of_job(begun: Sequence[LiveRank], ranks: Sequence[LiveRank]) -> dict[Family, list[Sample]]:
    values: dict[Family, float] = {
        _JOB_RANKS: len(begun),
        _JOB_BAD: sum(rank.num_bad for rank in ranks),
    }
    if begun:
        medians = [statistics.median(rank.recent_ns) / 1e9 for rank in begun]
        values[_JOB_STEPS] = min(rank.num_steps for rank in begun)
        values[_JOB_MEDIAN] = statistics.median(medians)
        values[_JOB_SLOWEST] = max(medians)
    return {family: [Sample(labels=(), value=value)] for family, value in values.items()}


def _of_ranks(ranks: Sequence[LiveRank]) -> Iterator[tuple[Family, list[Sample]]]:
    for family, read in _OF_RANK.items():
        known = ((str(rank.rank), read(rank)) for rank in ranks)
        samples = [Sample(labels=(name,), value=v) for name, v in known if v is not None]
        if samples:
            yield family, samples
    parts = {
        _PHASES: [rank.phases_ns for rank in ranks],
        _THREAD: [rank.thread_ns for rank in ranks],
    }
    for family, of_ranks in parts.items():
        samples = [
            Sample(labels=(str(rank.rank), name), value=ns / 1e9)
            for rank, part_ns in zip(ranks, of_ranks, strict=True)
            for name, ns in sorted(part_ns.items())
        ]
        if samples:
            yield family, samples


def all_families() -> tuple[Family, ...]:
    """Every family that an exporter may send."""
    job = (_JOB_RANKS, _JOB_STEPS, _JOB_MEDIAN, _JOB_SLOWEST, _JOB_BAD)
    return (*job, *_OF_RANK, _PHASES, _THREAD, *_OF_REPORT.values())


class Observed:
    """A source of metrics: a saved report, or a run directory.

    A run directory provides its records, and its report once there is one.
    """

    def __init__(self, source: str) -> None:
        self._lock = threading.Lock()  # scrapers call from separate threads
        self._live: LiveRun | None = None
        self._report = Path(source)
        if kind_of(source) is Kind.REPORT:
            load_report(self._report)
        else:
            self._live = LiveRun(source)
            self._report = self._live.path / REPORT_FILE

    @property
    def name(self) -> str:
        """Name of the run directory, or of the report file."""
        path = self._report if self._live is None else self._live.path
        return path.absolute().name

    def on_step(self, take: Callable[[int, StepRecord], None]) -> None:
        """Call ``take`` with the rank and record of each step of a live run from now on."""
        if self._live is not None:
            self._live.on_step = take

    def families(self) -> SampledFamilies:
        """All families with known values."""
        with self._lock:
            found = dict(self._of_report())
            if self._live is not None:
                self._live.look()
                found |= families_of_run(self._live)
        return found

    def _of_report(self) -> SampledFamilies:
        """Families of the report; a run that is still training has none."""
        if self._live is not None and not self._report.is_file():
            return {}
        try:
            return families_of_report(load_report(self._report))
        except DistprofError:
            return {}
