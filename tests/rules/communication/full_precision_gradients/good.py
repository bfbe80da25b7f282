"""As much is exposed, in 16 bits already."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(exposed_ns_per_step=2_400 * US)
    return {
        **healthy(exposed_transfer=2.4, communication_ms=14.0),
        GradientsResult: gradients(group),
    }
