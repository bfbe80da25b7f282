"""All devices alike are at their power cap, as large models keep them."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import RANKS, Results, healthy, telemetry


def results() -> Results:
    capped = {"throttled_ratio": 0.9, "throttle_reasons": {"sw_power_cap": 0.9}}
    return {**healthy(), TelemetryResult: telemetry(dict.fromkeys(RANKS, capped))}
