"""The device waits 6 ms of each step for launches."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_host=6.0)
