"""As much transfer is exposed, but for the most part it is waiting: overlap would not help."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_transfer=0.1, exposed_wait=0.7, communication_ms=2.0)
