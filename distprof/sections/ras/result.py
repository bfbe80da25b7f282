"""What NCCL's RAS says of a running job: communicators, ranks in trouble, ranks behind."""

from __future__ import annotations

from distprof.artefacts.ras import TroubledRank
from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = ["RasCommunicators", "RasResult", "TroubledRank"]


class RasCommunicators(Record, frozen=True, kw_only=True):
    """Communicators that are alike.

    Args:
        num_communicators: How many.
        num_ranks: Ranks of each.
        num_nodes: Nodes of each.
        status: For example ``RUNNING``.
        errors: Of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.
    """

    num_communicators: int
    num_ranks: int
    num_nodes: int
    status: str
    errors: tuple[str, ...]


class RasResult(Result, frozen=True, kw_only=True):
    """A job at one moment; empty without output of ncclras.

    Args:
        version: NCCL's version, empty where not told.
        time: As printed, empty where not told.
        num_processes: Processes of the job, None where not told.
        num_nodes: Nodes of the job, None where not told.
        num_timeouts: Timeouts while it was gathered.
        communicators: The largest first.
        troubled: Ranks in trouble, the worst kind first.
        num_behind: Ranks that have launched fewer operations than others, also those not named.
        stands: Whether unequal launches are as in the snapshot before, None with one snapshot.
    """

    version: str = ""
    time: str = ""
    num_processes: int | None = None
    num_nodes: int | None = None
    num_timeouts: int = 0
    communicators: tuple[RasCommunicators, ...] = ()
    troubled: tuple[TroubledRank, ...] = ()
    num_behind: int = 0
    stands: bool | None = None
