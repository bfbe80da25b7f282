"""Expert parallelism of a model that has no experts."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("ep=2")
