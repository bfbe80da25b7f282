"""64 stages for 32 layers."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("pp=64")
