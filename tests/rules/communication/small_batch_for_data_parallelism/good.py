"""As much is exposed, but backward takes longer than the transfer."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import MS, US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(exposed_ns_per_step=1_200 * US, transfer_ns=8 * MS)
    return {
        **healthy(exposed_transfer=1.2, communication_ms=10.0),
        GradientsResult: gradients(group),
    }
