"""Coordinates captures that run one per rank, as under ``srun distprof capture``.

The capture of rank 0 completes run.json and reports. The others write how their ranks ended. A
capture whose rank failed waits for the report, because mpirun ends all processes as soon as one
fails. No capture ends another's program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof_probes.attach.launch import Ending
from distprof_probes.attach.ranks import look
from distprof_probes.environment import Placement, placement
from distprof_probes.job.alarm import ANSWER_S, Alarm
from distprof_probes.job.evidence import RankEvidence
from distprof_probes.job.other_hosts import evidence_of_others, report_endings

_OTHERS_S = 60.0
_STAY_S = 10.0
_INTERRUPTED_S = 2.0  # a launcher that ends a job does not wait for long


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJob:
    """This capture's part in a job that may have several, placed by its launcher."""

    run_dir: Path  # The run directory, the same for all.
    place: Placement  # This process's placement, from its launcher.

    @classmethod
    def of(cls, run_dir: Path) -> SharedJob:
        """The job that the environment describes."""
        return cls(run_dir=run_dir, place=placement())

    def own_rank(self, ending: Ending) -> int | None:
        """The rank of the captured program; None if it started ranks, or was not a rank."""
        here = [each for each in look(self.run_dir, at_steps=False) if each.is_here]
        own = [each.rank for each in here if each.pid == ending.pid]
        is_known = self.place.origin == "alone" or self.place.rank in own
        return own[0] if own and is_known else None

    def other_endings(self, ending: Ending) -> list[RankEvidence]:
        """On rank 0: how the ranks of other captures ended, where reported."""
        if self.place.origin == "alone" or self.own_rank(ending) is None:
            return []
        patience_s = ANSWER_S if ending.exit.code or ending.exit.signal else _OTHERS_S
        patience_s = _INTERRUPTED_S if ending.was_interrupted else patience_s
        others = range(1, self.place.world_size or 1)
        evidence = evidence_of_others(self.run_dir, others, patience_s=patience_s)
        return [each for each in evidence if each.exit is not None]

    def report_own_ending(self, ending: Ending, seen: Sequence[RankEvidence]) -> None:
        """On other ranks: report how this one ended, and wait for the report if it failed."""
        own = self.own_rank(ending)
        if own is None:
            return
        report_endings(self.run_dir, [each for each in seen if each.rank == own])
        if ending.exit.code != 0 and not ending.was_interrupted:
            alarm = Alarm(self.run_dir)
            alarm.ring()
            alarm.wait_for_the_end(conclude_s=_STAY_S)

    def release_others(self) -> None:
        """On rank 0: the report is complete, so let the others end."""
        Alarm(self.run_dir).silence()
