"""Metrics for Prometheus: as text, in a file for node_exporter, or over HTTP.

``prometheus-client`` writes the formats. The exporter is a separate process that reads the files of
the probes. Neither a scraper that hangs nor a full disk can therefore affect the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.documents.document import write_file
from distprof.errors import InputError, MissingExtraError
from distprof.verbs.addresses import cannot_listen
from distprof.verbs.export.families import Observed

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
    """Write a file for node_exporter's textfile collector, atomically.

    ``every_s`` is the time between two writes, for ever; None writes once. ``failed`` gets the
    reason if a write fails and there will be another. A single write that fails raises InputError.
    """
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
