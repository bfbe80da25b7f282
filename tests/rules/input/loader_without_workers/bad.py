"""The training thread loads its batches itself, which takes 3 ms of each step."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import RANKS, Results, feed, healthy, settings


def results() -> Results:
    own = tuple(feed(rank, num_own_loads=5, num_worker_loads=0) for rank in RANKS)
    return {**healthy(idle_input=3.0), SettingsResult: settings(feed=own)}
