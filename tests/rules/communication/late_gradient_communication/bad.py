"""The first of five buckets is ready when 9.5 of 10 ms of backward are done."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(before_first_ns=9_500 * US)
    return {**healthy(), GradientsResult: gradients(group)}
