"""The last of three buckets holds half of the gradients and exposes 0.8 ms."""

from distprof.sections.gradients.result import GradientsResult
from tests.rules.samples import Results, gradient_group, gradients, healthy


def results() -> Results:
    group = gradient_group(num_buckets=3, last_bucket_ratio=0.5)
    return {**healthy(), GradientsResult: gradients(group)}
