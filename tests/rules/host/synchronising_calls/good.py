"""The host waits for the device once, at the end of the step."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_sync=0.3)
