"""Sixteen stages, and not many more micro-batches."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("pp=16,micro-batch=2,sharding=zero-1")
