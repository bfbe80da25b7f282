"""How a captured job ended, from the files of its ranks and observations during the run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from distprof.artefacts.run_file import Exit, Failure, Outcome
from distprof_probes.attach.launch import Ending
from distprof_probes.attach.ranks import LivingRank, look
from distprof_probes.job.evidence import RankEvidence, rank_evidence
from distprof_probes.job.failure import first_cause
from distprof_probes.job.memory_killer import KillCounts, kill_counts, who_struck
from distprof_probes.job.process import process_state

_NEW_RANKS_EVERY_NS = 10**9


@dataclass(slots=True)
class Watch:
    """Observes the ranks on this host while the program runs.

    They are not child processes, so only the time of their end is visible, not the reason. A rank
    that disappeared before any other rank had trouble counts as the first.
    """

    run_dir: Path  # The run directory.
    # Rank to the last look that found its process, ns since the epoch.
    alive_until_ns: dict[int, int] = field(default_factory=dict)
    # Ranks whose process was stopped at the last look.
    stopped: set[int] = field(default_factory=set)
    _pids: dict[int, int] = field(default_factory=dict)
    _looked_ns: int = 0
    _kills_before: KillCounts = field(default_factory=kill_counts)

    @property
    def struck_by(self) -> Literal["", "group", "machine"]:
        """Where the kernel's out-of-memory killer has struck since the start."""
        return who_struck(self._kills_before, kill_counts())

    def look(self) -> None:
        """Check once; quick, and never fails."""
        now_ns = time.time_ns()
        if now_ns - self._looked_ns > _NEW_RANKS_EVERY_NS:
            self._looked_ns = now_ns
            self._find()
        for rank, pid in list(self._pids.items()):
            state = process_state(pid)
            if state is None or state.letter == "Z":
                del self._pids[rank]
                continue
            self.alive_until_ns[rank] = now_ns
            (self.stopped.add if state.letter in "Tt" else self.stopped.discard)(rank)

    def _find(self) -> None:
        try:
            found = look(self.run_dir, at_steps=False)
        except Exception:  # the program may do anything to its run directory
            return
        self._pids |= {
            each.rank: each.pid
            for each in found
            if each.pid is not None and each.process is not None
        }


def rank_ends(
    run_dir: Path, ending: Ending, watch: Watch, *, own: int | None, told: Sequence[RankEvidence]
) -> list[RankEvidence]:
    """Evidence about every rank after the program has ended.

    ``own`` is the rank of the program itself, None if it was not a rank; ``told`` are reports of
    the captures of other ranks.
    """
    reports = {each.rank: each for each in told}
    found = {
        rank.rank: _evidence(run_dir, rank, watch) for rank in look(run_dir, at_steps=False)
    } | reports
    if own is not None and own in found:
        end = structs.replace(ending.exit, by_launcher=ending.was_interrupted)
        told_ns = end.ended_ns if ending.was_interrupted else None
        found[own] = replace(found[own], exit=end, told_to_end_ns=told_ns)
    return [found[rank] for rank in sorted(found)]


def outcome_of(ending: Ending, evidence: Sequence[RankEvidence]) -> tuple[Outcome, Failure | None]:
    """The outcome, and the first cause if the job failed."""
    ends = [ending.exit, *(each.exit for each in evidence if each.exit is not None)]
    if all(end.code == 0 for end in ends):
        return "completed", None
    vanished = _first_to_vanish(evidence)
    if vanished is not None and not ending.was_interrupted:
        return "failed", vanished
    failure = first_cause(evidence, is_interrupted=ending.was_interrupted)
    return ("interrupted" if ending.was_interrupted else "failed"), failure


def _evidence(run_dir: Path, rank: LivingRank, watch: Watch) -> RankEvidence:
    found = rank_evidence(
        run_dir,
        rank.rank,
        alive_until_ns=watch.alive_until_ns.get(rank.rank),
        state="T" if rank.rank in watch.stopped else "",
        struck_by=watch.struck_by if rank.is_here else "",
    )
    ended_well = rank.has_ended and found.error is None
    return replace(found, exit=Exit(code=0)) if ended_well else found


def _first_to_vanish(evidence: Sequence[RankEvidence]) -> Failure | None:
    """A rank that disappeared, without an error report, before any other rank had trouble."""
    errors = [each.error.time_ns for each in evidence if each.error is not None]
    silent = [
        each
        for each in evidence
        if each.error is None and each.exit is None and each.alive_until_ns is not None
    ]
    gone = [each for each in silent if not errors or (each.alive_until_ns or 0) < min(errors)]
    if not gone:
        return None
    first = min(gone, key=lambda each: (each.alive_until_ns or 0, each.rank))
    when = (
        "before its first step"
        if first.last_step is None
        else f"after step {first.last_step} or soon after"
    )
    others = ", before any other rank had trouble" if len(evidence) > 1 else ""
    why = {
        "": "it was killed from outside (SIGKILL, out of memory), crashed, or called os._exit",
        "group": "the kernel's out-of-memory killer struck in this job's control group during it",
        "machine": "the kernel's out-of-memory killer struck on this machine during the job",
    }[first.struck_by]
    return Failure(
        rank=first.rank,
        kind="out_of_memory" if first.struck_by else "killed",
        message=f"rank {first.rank} disappeared without an error {when}{others}: {why}",
        step=first.last_step,
        detected_ns=first.alive_until_ns,
    )
