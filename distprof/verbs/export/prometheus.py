"""Metrics for Prometheus: as text, in a file for node_exporter, or over HTTP."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from distprof.artefacts import REPORT_FILE
from distprof.artefacts.records import StepRecord
from distprof.bounds import table_beside
from distprof.documents.document import write_file
from distprof.documents.saved import Report, load_report
from distprof.errors import DistprofError, InputError, MissingExtraError
from distprof.ingest.job.growing import LiveRank, LiveRun
from distprof.ingest.recognise import Kind, kind_of
from distprof.sections.metrics import METRICS
from distprof.verbs.sources import cannot_listen

MAX_RANKS = 256
"""Maximum number of ranks in a job for separate series per rank."""
_Kind: TypeAlias = Literal["gauge", "counter"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric family."""

    name: str  # Name with its unit; names of counters end in ``_total``.
    kind: _Kind  # ``counter`` for values that only grow while the job runs.
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


def _family(row: Mapping[str, Any], *labels: str) -> Family:
    name, kind, meaning = row["name"], row["kind"], row["meaning"]
    return Family(name=f"distprof_{name}", kind=kind, meaning=meaning, labels=labels)


_TABLE = table_beside(__package__, "families.toml")
_JOB = {row["name"]: _family(row) for row in _TABLE["job"]}
_OF_RANK = {_family(row, "rank"): row["field"] for row in _TABLE["rank"]}
_PARTS = {_family(row, "rank", row["label"]): row["field"] for row in _TABLE["parts"]}


def _value(rank: LiveRank, field: str) -> float | None:
    """A field of a rank in base units; None if it is unknown."""
    value: Any = rank
    for name in field.split("."):
        value = getattr(value, name, None)
    if value is None:
        return None
    if field.endswith("_ns"):
        return float(value / 1e9)
    return float(value * 1e6) if field.endswith("_mhz") else value


def families_of_run(run: LiveRun) -> SampledFamilies:
    """The families of a live run, as of the last look at it."""
    begun = [rank for rank in run.ranks.values() if rank.num_steps]
    num_bad = sum(rank.num_bad for rank in run.ranks.values())
    values: dict[str, float] = {"job_ranks": len(begun), "job_bad_lines_total": num_bad}
    if begun:
        medians = [statistics.median(rank.recent_ns) / 1e9 for rank in begun]
        values["job_steps_total"] = min(rank.num_steps for rank in begun)
        values["job_step_median_seconds"] = statistics.median(medians)
        values["job_step_slowest_seconds"] = max(medians)
    found = {_JOB[name]: [Sample(labels=(), value=value)] for name, value in values.items()}
    return found if len(run.ranks) > MAX_RANKS else {**found, **dict(_of_ranks(begun))}


def _of_ranks(ranks: Sequence[LiveRank]) -> Iterator[tuple[Family, list[Sample]]]:
    for family, field in _OF_RANK.items():
        known = ((str(rank.rank), _value(rank, field)) for rank in ranks)
        samples = [Sample(labels=(name,), value=v) for name, v in known if v is not None]
        if samples:
            yield family, samples
    for family, field in _PARTS.items():
        samples = [
            Sample(labels=(str(rank.rank), name), value=ns / 1e9)
            for rank in ranks
            for name, ns in sorted(getattr(rank, field).items())
        ]
        if samples:
            yield family, samples


def all_families() -> tuple[Family, ...]:
    """Every family that an exporter may send."""
    return (*_JOB.values(), *_OF_RANK, *_PARTS, *_OF_REPORT.values())


class Observed:
    """A source of metrics: a saved report, or a run directory with its records and report."""

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


if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Exposition:
    """The metrics of a source as a collector for ``prometheus-client``."""

    def __init__(self, source: str) -> None:
        try:
            import prometheus_client  # noqa: F401 - checked before the source is read
        except ImportError as error:
            raise MissingExtraError("distprof export prometheus", "prometheus") from error
        self._observed = Observed(source)

    def collect(self) -> Iterator[Any]:
        """The families as objects of ``prometheus-client``."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for family, samples in self._observed.families().items():
            made = kinds[family.kind](family.name, family.meaning, labels=family.labels)
            for sample in samples:
                made.add_metric(sample.labels, sample.value)
            yield made

    def registry(self) -> CollectorRegistry:
        """A registry with only this exposition, without metrics of this process."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry


def text_of(exposition: Exposition) -> str:
    """The metrics in the text format of Prometheus."""
    from prometheus_client import generate_latest

    return generate_latest(exposition.registry()).decode()


def keep_file(
    exposition: Exposition,
    file: str,
    every_s: float | None,
    *,
    failed: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write a file for node_exporter's textfile collector, once or every ``every_s`` seconds."""
    while True:
        try:
            write_file(Path(file), text_of(exposition).encode())
        except InputError as error:
            if every_s is None:
                raise
            failed(f"{file} was not written: {error.found}")
        if every_s is None:
            return
        sleep(every_s)


def serve(exposition: Exposition, host: str, port: int) -> tuple[Callable[[], None], int]:
    """Answer scrapers in threads; return a function that stops the server, and its port."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=host, registry=exposition.registry())
    except (OSError, OverflowError) as error:
        raise cannot_listen(host, port, error) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end, int(server.server_port)
