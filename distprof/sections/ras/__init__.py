"""A running job according to NCCL's RAS: communicators, ranks in trouble, ranks behind."""

from __future__ import annotations

from distprof.artefacts.record import Record, TroubledRank
from distprof.sections.base import Result

__all__ = ["RasCommunicators", "RasResult", "TroubledRank"]


class RasCommunicators(Record, frozen=True, kw_only=True):
    """Communicators with the same size, status and errors."""

    num_communicators: int  # Number of communicators.
    num_ranks: int  # Ranks per communicator.
    num_nodes: int  # Nodes per communicator.
    status: str  # For example ``RUNNING``.
    errors: tuple[str, ...]  # Any of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.


class RasResult(Result, frozen=True, kw_only=True):
    """A job at one moment; empty without output of ncclras."""

    version: str = ""  # NCCL's version; empty if unknown.
    time: str = ""  # Time as printed; empty if unknown.
    num_processes: int | None = None  # Processes of the job; None if unknown.
    num_nodes: int | None = None  # Nodes of the job; None if unknown.
    num_timeouts: int = 0  # Timeouts while NCCL gathered the status.
    communicators: tuple[RasCommunicators, ...] = ()  # Communicators, largest first.
    troubled: tuple[TroubledRank, ...] = ()  # Ranks in trouble, worst kind first.
    # Ranks that have launched fewer operations than others, including unnamed ones.
    num_behind: int = 0
    # Whether unequal launches are the same as in the previous snapshot; None with one snapshot.
    stands: bool | None = None
