"""A tenth of the energy is drawn while ranks wait."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import Results, healthy, telemetry


def results() -> Results:
    return {**healthy(), TelemetryResult: telemetry(waiting_energy_ratio=0.1)}
