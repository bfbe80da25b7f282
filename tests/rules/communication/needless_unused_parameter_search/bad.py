"""DDP searches 0.5 ms of each step, and finds nothing."""

from distprof.sections.gradients.result import GradientsResult
from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import MS, Results, ddp, gradients, healthy, settings


def results() -> Results:
    searching = ddp(find_unused_parameters=True, num_looks=12, max_unused_bytes=0)
    return {
        **healthy(),
        SettingsResult: settings(ddp=(searching,)),
        GradientsResult: gradients(search_ns_per_step=MS, search_exposed_ns_per_step=MS // 2),
    }
