"""The first step waits for the last profiler to start."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    return {**healthy(), CaptureResult: capture(transient_steps=(10,), steps=(11, 12, 13, 14))}
