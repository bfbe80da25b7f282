"""Four stages for 80 layers."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=8,pp=4,sharding=zero-1", model="llama2-70b", batch=64)
