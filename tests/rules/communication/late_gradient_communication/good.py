"""So late too, but hardly anything is exposed."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(before_first_ns=9_500 * US, exposed_ns_per_step=300 * US)
    return {**healthy(), GradientsResult: gradients(group)}
