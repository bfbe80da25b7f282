"""Three sequences a rank of 128 for 64 ranks."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("micro-batch=3")
