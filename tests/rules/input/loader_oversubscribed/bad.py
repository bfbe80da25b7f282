"""Four ranks with 32 workers each on 64 processors wait 1.1 ms of each step for data."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, host_setup, settings


def results() -> Results:
    full = (host_setup("node-1", (0, 1, 2, 3), num_workers=128, cpu_busy_ratio=0.97),)
    return {**healthy(idle_input=1.08), SettingsResult: settings(hosts=full)}
