"""A step computes for 70 ms and transfers for 60, half of it hidden."""

from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import ScalingResult
from tests.rules.samples import Results
from tests.verbs.sweep.sweeps import parts, runs


def results() -> Results:
    two = parts(computation=70, exposed_transfer=29, other=1)
    eight = parts(computation=70, exposed_transfer=30, other=3)
    sweep = [*runs(2, 100, two), *runs(8, 103, eight)]
    return {ScalingResult: analyze_scaling(sweep)}
