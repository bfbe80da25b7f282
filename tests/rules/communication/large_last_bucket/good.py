"""Half of them too, but others are exposed as well: the network is busy all the time."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import US, Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(num_buckets=3, last_bucket_ratio=0.5, last_bucket_ns_per_step=350 * US)
    return {**healthy(), GradientsResult: gradients(group)}
