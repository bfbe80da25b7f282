"""Heat slows the device of rank 5 down in most samples, and the others wait for it."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import US, Results, healthy, straggler, stragglers, telemetry


def results() -> Results:
    late = straggler(5, lost_ns_per_step=60 * US, share_of_step_ratio=0.003, late_ratio=0.3)
    sensors = telemetry(
        {5: {"throttled_ratio": 0.8, "throttle_reasons": {"hw_thermal_slowdown": 0.8}}}
    )
    return {**healthy(), TelemetryResult: sensors, StragglersResult: stragglers(late)}
