"""Four ranks without an accelerator have 32 threads each on 64 processors."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, host_setup, settings


def results() -> Results:
    full = (host_setup("node-1", (0, 1, 2, 3), is_cpu=True, num_threads=32, cpu_busy_ratio=0.99),)
    return {**healthy(), SettingsResult: settings(hosts=full)}
