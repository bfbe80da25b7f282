"""A running job according to NCCL's RAS: communicators, ranks in trouble, ranks behind."""

from __future__ import annotations

from distprof.artefacts.record import made_from
from distprof.join.nccl import in_trouble, num_behind
from distprof.run.evidence import RasStatus
from distprof.run.run import Run
from distprof.sections.ras import RasCommunicators, RasResult

MAX_TROUBLED = 2_000


def analyze_ras(run: Run) -> RasResult:
    """A job at one moment; empty without output of ncclras."""
    status = run.get(RasStatus)
    if status is None:
        return RasResult()
    return made_from(
        status,
        RasResult,
        communicators=tuple(
            made_from(group, RasCommunicators, num_ranks=group.size) for group in status.groups
        ),
        troubled=in_trouble(status)[:MAX_TROUBLED],
        num_behind=num_behind(status),
        unavailable=status.notes,
    )
