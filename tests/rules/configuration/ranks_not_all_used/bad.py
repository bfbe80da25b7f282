"""Three ranks of 64 GPUs, though the batch divides."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("dp=32,micro-batch=4,micro-batches=1")
