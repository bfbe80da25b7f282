"""Copies run beside computation."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_copy=0.0)
