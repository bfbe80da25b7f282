"""The loop waits 3 ms of each step for its batch."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_input=3.0)
