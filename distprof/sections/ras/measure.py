"""A running job according to NCCL's RAS: communicators, ranks in trouble, ranks behind."""

from __future__ import annotations

from distprof.join.ras import in_trouble, num_behind
from distprof.run.evidence import RasStatus
from distprof.run.run import Run
from distprof.sections.ras.result import RasCommunicators, RasResult

MAX_TROUBLED = 2_000


def analyze_ras(run: Run) -> RasResult:
    """A job at one moment; empty without output of ncclras."""
    status = run.get(RasStatus)
    if status is None:
        return RasResult()
    return RasResult(
        version=status.version,
        time=status.time,
        num_processes=status.num_processes,
        num_nodes=status.num_nodes,
        num_timeouts=status.num_timeouts,
        communicators=tuple(
            RasCommunicators(
                num_communicators=group.num_communicators,
                num_ranks=group.size,
                num_nodes=group.num_nodes,
                status=group.status,
                errors=group.errors,
            )
            for group in status.groups
        ),
        troubled=in_trouble(status)[:MAX_TROUBLED],
        num_behind=num_behind(status),
        stands=status.stands,
        unavailable=status.notes,
    )
