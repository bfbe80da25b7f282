"""A pipeline waits in send and recv for a third of the step: no rank is late, nothing is slow."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_p2p_wait=10.0, communication_ms=18.0)
