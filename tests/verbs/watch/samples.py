"""Reports of a watched job, for tests of what is shown."""

from __future__ import annotations

from distprof.artefacts.records import CollectivesRecord, GroupTimes
from distprof.ingest.job.growing import RankAdded
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.show import Alert, WatchReport
from tests.verbs.watch.jobs import MS, Playing, run_file, said, step
from tests.verbs.watch.test_state import samples

HOSTILE = "a\x1b[2J\u202eb"


def running() -> WatchReport:
    """Rank 2 is slow, rank 1's GPU is hot, and one line was damaged."""
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=1, samples=samples("hw_thermal_slowdown", 100))])
    playing.look(ranks=[RankAdded(rank=r, said=said(r, cost=r / 1_000)) for r in range(3)])
    playing.steps(0, 150, {2: 96.0})
    return report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)


def on_gpus() -> WatchReport:
    """Rank 2 is slow, as far as its collectives say: it arrives last at two buckets."""
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=r, said=said(r, device="NVIDIA H100")) for r in range(4)])
    for number in range(60):
        playing.look(ranks=[_gpu_step(number, rank) for rank in range(4)])
    return report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)


def _gpu_step(number: int, rank: int) -> RankAdded:
    waits = (10, 12) if rank != 2 else (0, 0)
    times = GroupTimes(
        group="0:1",
        kind="all",
        num_ranks=4,
        first=2 * number,
        num=2,
        total_ns=tuple((wait + 3) * MS for wait in waits),
    )
    records = (CollectivesRecord(step=number, groups=(times,)),)
    return RankAdded(rank=rank, steps=(step(number, own_ms=1, step_ms=113),), collectives=records)


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
