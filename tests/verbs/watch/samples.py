"""Reports of a watched job, for tests of what is shown."""

from __future__ import annotations

from distprof.ingest.job.growing import RankAdded
from distprof.verbs.watch.measure import report_on
from distprof.verbs.watch.result import Alert, WatchReport
from tests.verbs.watch.jobs import Playing, run_file
from tests.verbs.watch.test_state import samples

HOSTILE = "a\x1b[2J\u202eb"


def running() -> WatchReport:
    """Rank 2 is slow, rank 1's GPU is hot, and one line was damaged."""
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=1, samples=samples("hw_thermal_slowdown", 100))])
    playing.steps(0, 150, {2: 96.0})
    return report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)


def ended() -> WatchReport:
    """Rank 1 was killed, and says so in words that a terminal would obey."""
    from distprof.artefacts.run_file import Failure

    playing = Playing(2)
    playing.steps(0, 30)
    failure = Failure(rank=1, kind="killed", message=HOSTILE)
    playing.look(run=run_file(2, "failed", failure=failure))
    return report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)


def alert() -> Alert:
    """What a webhook gets."""
    return running().alerts[0]
