"""Four micro-batches, reduced once."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(micro_batches=4.0)
    return {**healthy(), GradientsResult: gradients(group)}
