"""The training thread loads its batches itself, in next to no time."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import RANKS, Results, feed, healthy, settings


def results() -> Results:
    own = tuple(feed(rank, num_own_loads=5, num_worker_loads=0) for rank in RANKS)
    return {**healthy(idle_input=0.3), SettingsResult: settings(feed=own)}
