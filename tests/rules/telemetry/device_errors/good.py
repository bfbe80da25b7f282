"""Logs were read, and hold no error."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import Results, healthy, telemetry


def results() -> Results:
    return {**healthy(), TelemetryResult: telemetry()}
