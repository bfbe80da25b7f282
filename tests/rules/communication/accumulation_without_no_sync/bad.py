"""Each of four micro-batches is reduced; the three that are not needed expose 0.6 ms."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(micro_batches=4.0, times_reduced=4.0, redundant_ns_per_step=600 * US)
    return {**healthy(), GradientsResult: gradients(group)}
