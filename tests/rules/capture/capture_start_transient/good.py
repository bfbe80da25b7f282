"""The profiler had time to settle."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    return {**healthy(), CaptureResult: capture(transient_steps=())}
