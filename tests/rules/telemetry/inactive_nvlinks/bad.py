"""One of the links of rank 5's GPU does not work."""

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import RANKS, Results, healthy, nvlink, telemetry


def results() -> Results:
    links = tuple(nvlink(rank, 17 if rank == 5 else 18) for rank in RANKS)
    return {**healthy(), TelemetryResult: telemetry(nvlinks=links)}
