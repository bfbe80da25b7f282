"""Sends metrics and one span per step to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from distprof.artefacts.records import StepRecord
from distprof.bounds import table_beside
from distprof.errors import InputError, MissingExtraError, UsageError
from distprof.escape import plain, shorten
from distprof.verbs.export.prometheus import Family, Observed, all_families
from distprof.verbs.sources import is_web_address
from distprof.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.trace import ReadableSpan

MAX_WAITING = 10_000
"""Maximum number of steps that wait for an unreachable collector; older ones are dropped and
counted."""
_BATCH = 512
_UNITS: Mapping[str, str] = table_beside(__package__, "families.toml")["units"]


def base_of(endpoint: str) -> str:
    """Check the address of a collector, and remove trailing slashes."""
    if not is_web_address(endpoint):
        raise UsageError(f"{endpoint!r} is not an address such as http://127.0.0.1:4318")
    return endpoint.rstrip("/")


def name_of(family: Family) -> str:
    """The OpenTelemetry name: with a namespace, and without Prometheus's suffix ``_total``."""
    return family.name.replace("distprof_", "distprof.", 1).removesuffix("_total")


def unit_of(family: Family) -> str:
    """The unit in UCUM notation; empty for counts."""
    name = family.name.removesuffix("_total")
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


class Sender:
    """Sends metrics, and steps of one rank (the lowest by default) as spans, to one collector."""

    def __init__(
        self, observed: Observed, endpoint: str, *, rank: int | None = None, timeout_s: float = 10
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise MissingExtraError("distprof export otel", "otel") from error
        # distprof reports failures itself
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._observed, self._rank = observed, rank
        self._waiting: deque[StepRecord] = deque()
        self.num_dropped = 0
        observed.on_step(self._keep)
        self._resource = Resource.create(
            {
                "service.name": "distprof",
                "service.version": __version__,
                "distprof.run": shorten(plain(observed.name), 200),
            }
        )
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], self._resource, shutdown_on_exit=False)
        self._found: Any = {}
        self._declare()
        base = base_of(endpoint)
        self._metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=timeout_s)
        self._spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=timeout_s)

    def send(self) -> bool:
        """Send all current metrics and the unsent steps; return whether all of them arrived."""
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._found = self._observed.families()
        data = self._reader.get_metrics_data()
        if data is not None and self._metrics.export(data) is not MetricExportResult.SUCCESS:
            return False
        while batch := list(islice(self._waiting, _BATCH)):
            if self._spans.export(self._made(batch)) is not SpanExportResult.SUCCESS:
                return False
            for _ in batch:
                self._waiting.popleft()
        return True

    def forget_steps(self) -> None:
        """Skip spans of the steps recorded so far."""
        self._observed.families()
        self._waiting.clear()

    def _keep(self, rank: int, step: StepRecord) -> None:
        if self._rank is None:
            self._rank = rank  # ranks come in ascending order
        if rank == self._rank:
            self._waiting.append(step)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1

    def _declare(self) -> None:
        """Create an instrument for every family; unknown values are not observed."""
        meter = self._meters.get_meter("distprof", __version__)
        for family in all_families():
            getattr(meter, f"create_observable_{family.kind}")(
                name_of(family),
                callbacks=[self._callback(family)],
                unit=unit_of(family),
                description=family.meaning,
            )

    def _callback(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for sample in self._found.get(family, ()):
                labels = dict(zip(family.labels, sample.labels, strict=True))
                yield Observation(sample.value, labels)

        return observe

    def _made(self, steps: Iterable[StepRecord]) -> Sequence[ReadableSpan]:
        """One span per step, each in a separate trace: a trace of the whole run would never end."""
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        kept = InMemorySpanExporter()
        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(kept))
        tracer = provider.get_tracer("distprof", __version__)
        for step in steps:
            known = {"tokens": step.tokens, "samples": step.samples, "loss": step.loss}
            span = tracer.start_span(
                "step",
                start_time=step.start_ns,
                attributes={
                    "distprof.rank": self._rank or 0,
                    "distprof.step": step.step,
                    "distprof.is_traced": step.is_traced,
                    **{f"distprof.{key}": v for key, v in known.items() if v is not None},
                },
            )
            span.end(step.end_ns)
        return kept.get_finished_spans()


def send(
    sender: Sender,
    endpoint: str,
    every_s: float | None,
    *,
    failed: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send once, InputError if that fails, or for ever, with a sentence to ``failed``."""
    if every_s is not None:
        sender.forget_steps()
    while True:
        if not sender.send():
            if every_s is None:
                raise InputError(
                    endpoint,
                    expected="a collector that accepts OTLP over HTTP",
                    found="no collector, or one that did not accept the data in time",
                    fix="check the address; collectors listen on port 4318",
                )
            dropped = f"; {sender.num_dropped:,} steps dropped" if sender.num_dropped else ""
            failed(f"{endpoint} did not accept data{dropped}")
        if every_s is None:
            return
        sleep(every_s)
