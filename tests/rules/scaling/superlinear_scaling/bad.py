"""Eight ranks need 90 ms for what one rank needs 100 for."""

from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import ScalingResult
from tests.rules.samples import Results
from tests.verbs.sweep.sweeps import parts, runs


def results() -> Results:
    alone = parts(computation=98, other=2)
    eight = parts(computation=80, exposed_transfer=8, other=2)
    return {ScalingResult: analyze_scaling([*runs(1, 100, alone), *runs(8, 90, eight)])}
