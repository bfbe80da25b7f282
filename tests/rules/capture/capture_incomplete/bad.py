"""Half of the ranks were not recorded."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    lacking = capture(ranks_present=(0, 1, 2, 3), ranks_missing=(4, 5, 6, 7))
    return {**healthy(), CaptureResult: lacking}
