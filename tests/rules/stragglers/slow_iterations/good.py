"""Slow iterations add 2 % to the training, as much as may be."""

from distprof.sections.training_log.result import TrainingLogResult
from tests.rules.samples import MS, Results, healthy, training_log


def results() -> Results:
    log = training_log(num_slow=20, num_steady=1_000, slow_excess_ns=40 * MS, max_ns=4_000 * MS)
    return {**healthy(), TrainingLogResult: log}
