"""The device of rank 5 has a lower clock, and says no reason."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import US, Results, healthy, straggler, stragglers, telemetry


def results() -> Results:
    late = straggler(5, lost_ns_per_step=60 * US, share_of_step_ratio=0.003, late_ratio=0.3)
    sensors = telemetry({5: {"sm_clock_mhz_median": 1410}})
    return {**healthy(), TelemetryResult: sensors, StragglersResult: stragglers(late)}
