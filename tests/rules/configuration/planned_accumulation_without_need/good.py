"""One micro-batch."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=4,sharding=zero-1", batch=16)
