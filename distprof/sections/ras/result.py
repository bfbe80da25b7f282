"""A running job according to NCCL's RAS: communicators, ranks in trouble, ranks behind."""

from __future__ import annotations

from distprof.artefacts.ras import TroubledRank
from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = ["RasCommunicators", "RasResult", "TroubledRank"]


class RasCommunicators(Record, frozen=True, kw_only=True):
    """Communicators with the same size, status and errors.

    Args:
        num_communicators: Number of communicators.
        num_ranks: Ranks per communicator.
        num_nodes: Nodes per communicator.
        status: For example ``RUNNING``.
        errors: Any of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.
    """

    num_communicators: int
    num_ranks: int
    num_nodes: int
    status: str
    errors: tuple[str, ...]


class RasResult(Result, frozen=True, kw_only=True):
    """A job at one moment; empty without output of ncclras.

    Args:
        version: NCCL's version; empty if unknown.
        time: Time as printed; empty if unknown.
        num_processes: Processes of the job; None if unknown.
        num_nodes: Nodes of the job; None if unknown.
        num_timeouts: Timeouts while NCCL gathered the status.
        communicators: Communicators, largest first.
        troubled: Ranks in trouble, worst kind first.
        num_behind: Ranks that have launched fewer operations than others, including unnamed ones.
        stands: Whether unequal launches are the same as in the previous snapshot; None with one
            snapshot.
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
