"""Two stages a rank, and no pipeline."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("stages=2,sharding=zero-1")
