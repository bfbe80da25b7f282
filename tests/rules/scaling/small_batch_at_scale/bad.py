"""A step computes for 40 ms and transfers for 58, on two ranks as on eight."""

from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import ScalingResult
from tests.rules.samples import Results
from tests.verbs.sweep.sweeps import parts, runs


def results() -> Results:
    two = parts(computation=40, exposed_transfer=50, other=10)
    eight = parts(computation=40, exposed_transfer=52, other=11)
    sweep = [*runs(2, 100, two, overlap_ratio=0.1), *runs(8, 103, eight, overlap_ratio=0.1)]
    return {ScalingResult: analyze_scaling(sweep)}
