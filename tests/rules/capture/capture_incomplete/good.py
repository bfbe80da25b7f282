"""A few broken events among many, and nothing else."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    return {**healthy(), CaptureResult: capture(num_quarantined=2)}
