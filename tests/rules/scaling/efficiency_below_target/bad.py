"""71 % at eight ranks, lost to three causes of which none is the most."""

from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import ScalingResult
from tests.rules.samples import Results
from tests.verbs.sweep.sweeps import parts, runs


def results() -> Results:
    alone = parts(computation=95, host=3, other=2)
    eight = parts(computation=107, host=16, exposed_transfer=15, other=2)
    sweep = [*runs(1, 100, alone), *runs(8, 140, eight)]
    return {ScalingResult: analyze_scaling(sweep)}
