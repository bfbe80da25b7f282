"""Two milliseconds of each step are copies with nothing beside them."""

from tests.rules.samples import Results, healthy


def results() -> Results:
    return healthy(exposed_copy=2.0)
