"""Sixteen ranks on nodes of eight."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("dp=4,tp=16,sharding=zero-1,micro-batch=32")
