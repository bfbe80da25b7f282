"""Sixteen micro-batches of one sequence, with room for more."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=8,sharding=zero-1")
