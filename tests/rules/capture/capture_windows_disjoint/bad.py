"""The nodes were recorded one after the other."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    apart = capture(
        steps=(),
        dropped_steps={10: "not on ranks 4-7", 20: "not on ranks 0-3"},
        window_overlap_ratio=0.0,
    )
    return {**healthy(), CaptureResult: apart}
