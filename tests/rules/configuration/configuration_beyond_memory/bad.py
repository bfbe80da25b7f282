"""Seven billion parameters and their state on each GPU."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("dp=64")
