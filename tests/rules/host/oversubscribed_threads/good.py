"""One thread each on one processor, and as many threads as before where GPUs compute."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, host_setup, settings


def results() -> Results:
    hosts = (
        host_setup(
            "node-1", (0, 1, 2, 3), is_cpu=True, num_threads=1, num_cpus=1, cpu_busy_ratio=1.0
        ),
        host_setup("node-2", (4, 5, 6, 7), num_threads=64, cpu_busy_ratio=0.99),
    )
    return {**healthy(), SettingsResult: settings(hosts=hosts)}
