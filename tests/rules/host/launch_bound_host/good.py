"""Some gaps at the start of each step."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_host=1.5)
