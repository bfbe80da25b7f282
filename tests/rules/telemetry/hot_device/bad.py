"""The device of rank 5 is far hotter than the others."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import Results, healthy, telemetry


def results() -> Results:
    return {**healthy(), TelemetryResult: telemetry({5: {"temperature_c_max": 89}})}
