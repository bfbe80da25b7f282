"""Half of the transfer is exposed while 12 ms of computation runs alone."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_transfer=3.8)
