"""As many workers that wait for storage, and processors with time left."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, host_setup, settings


def results() -> Results:
    full = (host_setup("node-1", (0, 1, 2, 3), num_workers=128),)
    return {**healthy(idle_input=0.9), SettingsResult: settings(hosts=full)}
