"""Every fifty iterations one takes twice as long and more: 3 % of the training."""

from distprof.sections.training_log.result import SlowIteration, TrainingLogResult
from tests.rules.samples import MS, Results, healthy, training_log


def results() -> Results:
    log = training_log(
        num_slow=20,
        num_steady=1_000,
        slow_period=50,
        slow_excess_ns=60 * MS,
        max_ns=5_000 * MS,
        slowest=(SlowIteration(iteration=50, duration_ns=5_000 * MS),),
    )
    return {**healthy(), TrainingLogResult: log}
