"""The others wait 1.5 ms of each step for rank 5, whose device is slow."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import StragglerCause, StragglerPattern
from tests.rules.samples import US, Results, healthy, straggler, stragglers


def results() -> Results:
    late = straggler(
        5,
        lost_ns_per_step=1_500 * US,
        share_of_step_ratio=0.07,
        late_ratio=0.9,
        pattern=StragglerPattern.PERSISTENT,
        cause=StragglerCause.SLOW_DEVICE,
        confidence=0.95,
        evidence=("its kernels take 1.12 times as long as the same kernels of its peers",),
    )
    results = healthy(exposed_wait=1.6, communication_ms=12.5)
    return {**results, StragglersResult: stragglers(late)}
