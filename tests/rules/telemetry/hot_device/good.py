"""A device downstream in the air is hotter than the others, and as fast."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import Results, healthy, telemetry


def results() -> Results:
    return {**healthy(), TelemetryResult: telemetry({5: {"temperature_c_max": 78}})}
