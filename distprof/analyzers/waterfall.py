"""The lost-time waterfall: a step as an exact sum of its causes."""

from __future__ import annotations

from distprof.analyzers.result import Record, Result

__all__ = ["RankWaterfall", "WaterfallResult"]


class RankWaterfall(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; everything after ``span_ns`` adds up to it exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_transfer_ns: int
    exposed_wait_ns: int  # waiting in a collective for its last member
    exposed_p2p_wait_ns: int  # the same in send and recv: bubble, in a pipeline
    exposed_comm_unsplit_ns: int  # members could not be matched: wait and transfer not told apart
    exposed_copy_ns: int
    idle_host_ns: int
    idle_sync_ns: int
    idle_input_ns: int
    idle_comm_wait_ns: int
    idle_unknown_ns: int


class WaterfallResult(Result, frozen=True, kw_only=True):
    """Per rank, and all ranks added up; divide by ``num_ranks * num_steps`` for a mean step."""

    num_ranks: int
    num_steps: int
    ranks: tuple[RankWaterfall, ...]
    all: RankWaterfall | None  # rank is -1
