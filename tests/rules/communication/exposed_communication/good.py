"""The same pipeline with enough micro-batches."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_p2p_wait=2.0, communication_ms=10.0)
