"""As many workers, and nothing waits for data."""

from distprof.analyzers.settings import SettingsResult
from tests.rules.samples import Results, healthy, host_setup, settings


def results() -> Results:
    full = (host_setup("node-1", (0, 1, 2, 3), num_workers=128),)
    return {**healthy(), SettingsResult: settings(hosts=full)}
