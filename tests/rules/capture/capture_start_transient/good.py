"""The profiler had time to settle."""

from distprof.analyzers.capture import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    return {**healthy(), CaptureResult: capture(transient_steps=())}
