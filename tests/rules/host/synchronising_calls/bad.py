"""The device idles 2 ms of each step after synchronising calls."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_sync=2.0)
