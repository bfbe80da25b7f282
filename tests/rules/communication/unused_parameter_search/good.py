"""The device computes while the host searches."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    searched = gradients(
        gradient_group(), search_ns_per_step=300 * US, search_exposed_ns_per_step=10 * US
    )
    return {**healthy(), GradientsResult: searched}
