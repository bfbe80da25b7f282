"""The recordings start a few collectives apart: the first step is cut."""

from distprof.sections.capture.result import CaptureResult
from tests.rules.samples import Results, capture, healthy


def results() -> Results:
    cut = capture(dropped_steps={9: "cut by the capture on ranks 4-7"}, window_overlap_ratio=0.9)
    return {**healthy(), CaptureResult: cut}
