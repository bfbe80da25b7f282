"""One group's transfers take 1.16 times as long as another's: that is no slow link."""

from msgspec.structs import replace

from distprof.sections.stragglers.result import StragglersResult
from tests.rules.samples import US, Results, healthy, stragglers
from tests.rules.stragglers.slow_link.bad import LINK


def results() -> Results:
    near = replace(
        LINK,
        transfer_ns=3_480 * US,
        ratio=1.16,
        lost_ns_per_step=480 * US,
        share_of_step_ratio=0.024,
    )
    return {**healthy(), StragglersResult: replace(stragglers(), links=(near,))}
