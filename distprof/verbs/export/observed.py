"""Reads the current metrics for exporters, from a report, a live run, or both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from distprof.artefacts import REPORT_FILE
from distprof.artefacts.records import StepRecord
from distprof.documents.saved import load_report
from distprof.errors import DistprofError
from distprof.ingest.job.live import LiveRun
from distprof.ingest.recognise import Kind, kind_of
from distprof.verbs.export.families import SampledFamilies, families_of_report, families_of_run


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
