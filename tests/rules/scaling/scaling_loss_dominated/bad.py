"""Of 22 ms that are lost, 20 are exposed transfer."""

from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import ScalingResult
from tests.rules.samples import Results
from tests.verbs.sweep.sweeps import parts, runs


def results() -> Results:
    alone = parts(computation=95, host=3, other=2)
    eight = parts(computation=95, host=5, exposed_transfer=20, other=2)
    sweep = [*runs(1, 100, alone), *runs(8, 122, eight)]
    return {ScalingResult: analyze_scaling(sweep)}
