"""As much communication, the rest of it fits beside computation."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_transfer=0.3, communication_ms=16.5)
