"""Jobs as a watcher sees them: what ranks add between two looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distprof.artefacts.records import Phase, StepRecord
from distprof.artefacts.run_file import Outcome, Overhead, RankFile, RunFile
from distprof.ingest.job.growing import Added, RankAdded
from distprof.verbs.watch.alerts import default_levels
from distprof.verbs.watch.show import Alert
from distprof.verbs.watch.state import JobWatch

MS = 1_000_000
START_NS = 1_750_000_000 * 10**9


def step(
    number: int, *, own_ms: float = 80, step_ms: float = 100, input_ms: float = 1, **more: object
) -> StepRecord:
    start = START_NS + round(number * step_ms * MS)
    return StepRecord(
        step=number,
        start_ns=start,
        end_ns=start + round(step_ms * MS),
        phases=(Phase("input", start, start + round(input_ms * MS)),),
        cpu_ns=round(own_ms * MS),
        run_queue_ns=0,
        input_asleep_ns=0,
        **more,  # type: ignore[arg-type]
    )


def said(
    rank: int,
    *,
    device: str = "cpu",
    stage: int = 0,
    ended: bool = False,
    cost: float | None = None,
) -> RankFile:
    measured = Overhead(
        mode="always_on",
        method="blocks",
        ratio=cost or 0.0,
        low=(cost or 0.0) - 0.002,
        high=(cost or 0.0) + 0.002,
        num_pairs=32,
        step_ns=100 * MS,
    )
    return RankFile(
        rank=rank,
        pid=9,
        device=device,
        coordinates={"pp": stage},
        started_ns=START_NS,
        ended_ns=START_NS + 1 if ended else None,
        overhead=() if cost is None else (measured,),
    )


def run_file(world_size: int, outcome: Outcome = "running", **more: object) -> RunFile:
    return RunFile(
        distprof_version="1",
        kind="run",
        command=(),
        world_size=world_size,
        started_ns=START_NS,
        outcome=outcome,
        **more,  # type: ignore[arg-type]
    )


class Playing:
    """A job that is played to a watcher, at its own time."""

    def __init__(self, ranks: int, levels: Mapping[str, float] | None = None) -> None:
        self.ranks = ranks
        self.now_s = 1_000.0
        self.job = JobWatch("runs/mine", default_levels() if levels is None else levels)
        self.look(
            run=run_file(ranks), ranks=[RankAdded(rank=r, said=said(r)) for r in range(ranks)]
        )

    def look(
        self, *, run: RunFile | None = None, ranks: Sequence[RankAdded] = (), after_s: float = 1.0
    ) -> list[Alert]:
        self.now_s += after_s
        added = Added(run=run, ranks=tuple(ranks))
        return self.job.take(added, now_s=self.now_s, now_ns=self.now_ns)

    @property
    def now_ns(self) -> int:
        return START_NS + round((self.now_s - 1_000) * 1e9)

    def steps(
        self,
        first: int,
        last: int,
        own_ms: Mapping[int, float] | None = None,
        **more: float | bool | None,
    ) -> list[Alert]:
        """All ranks report steps, one per look; some need other own times."""
        found = []
        for number in range(first, last):
            found += self.look(
                ranks=[
                    RankAdded(
                        rank=r, steps=(step(number, own_ms=(own_ms or {}).get(r, 80), **more),)
                    )
                    for r in range(self.ranks)
                ]
            )
        return found
