"""DDP searches a little, and found something once."""

from distprof.sections.gradients.result import GradientsResult
from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import US, Results, ddp, gradients, healthy, settings


def results() -> Results:
    searching = ddp(find_unused_parameters=True, num_looks=12, max_unused_bytes=4_096)
    return {
        **healthy(),
        SettingsResult: settings(ddp=(searching,)),
        GradientsResult: gradients(search_ns_per_step=US, search_exposed_ns_per_step=US),
    }
