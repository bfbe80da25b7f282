"""Eight micro-batches for sixteen stages."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("pp=16,micro-batch=4,sharding=zero-1")
