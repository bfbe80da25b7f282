"""The kernel of rank 5's host logged that its GPU fell off the bus."""

from distprof.sections.telemetry.result import DeviceError, TelemetryResult
from tests.rules.samples import Results, healthy, telemetry


def results() -> Results:
    fell = DeviceError(
        kind="xid",
        number=79,
        device="GPU 00000000:9b:00.0 of node-2",
        rank=5,
        count=1,
        text="pid=4242, GPU has fallen off the bus.",
        time="Sun Feb 23 16:24:18 2025",
        is_dated=True,
        file="dmesg.log",
    )
    return {**healthy(), TelemetryResult: telemetry(errors=(fell,))}
