"""Every tenth step takes 40 ms longer than 20 ms."""

from distprof.sections.step_log.result import StepLogResult
from distprof.sections.step_log.stalls import PeriodicStall
from tests.rules.samples import MS, Results, changed, healthy


def results() -> Results:
    stall = PeriodicStall(
        period=10,
        first_step=9,
        num_stalls=9,
        num_due=9,
        longer_ns=40 * MS,
        cost_ns_per_step=4 * MS,
    )
    return changed(healthy(), StepLogResult, stalls=(stall,))
