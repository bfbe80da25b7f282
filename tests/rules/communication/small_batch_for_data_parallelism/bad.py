"""Reducing takes 8 ms, backward 6 ms, and 1.2 ms are exposed."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import MS, US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(exposed_ns_per_step=1_200 * US, transfer_ns=8 * MS, backward_ns=6 * MS)
    return {
        **healthy(exposed_transfer=1.2, communication_ms=10.0),
        GradientsResult: gradients(group),
    }
