"""Batches are ready."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(idle_input=0.1)
