"""GPUs of a kind that nobody knows have as many links as each other, half of them in use."""

import msgspec

from distprof.sections.telemetry.result import TelemetryResult
from tests.rules.samples import RANKS, Results, healthy, nvlink, telemetry


def results() -> Results:
    links = tuple(
        msgspec.structs.replace(nvlink(rank, 9), name="NVIDIA X1 PCIe", expected_bytes_per_s=None)
        for rank in RANKS
    )
    return {**healthy(), TelemetryResult: telemetry(nvlinks=links)}
