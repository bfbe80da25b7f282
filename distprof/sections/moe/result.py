"""Mixtures of experts in a report.

Computed by :mod:`distprof.sections.moe.routing` (what the routers chose),
:mod:`distprof.sections.moe.exchange` (all-to-alls and the time between them) and
:mod:`distprof.sections.moe.measure`, which joins the two.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "MoeDrift",
    "MoeExchange",
    "MoeLayer",
    "MoePair",
    "MoePlacement",
    "MoeRank",
    "MoeResult",
]


class MoeLayer(Record, frozen=True, kw_only=True):
    """One mixture-of-experts layer.

    Args:
        layer: Index or name of it.
        num_experts: Experts of the layer, on all ranks.
        top_k: Experts per token; 0 where that is not known.
        num_steps: Steps that the figures are means over.
        tokens_per_step: Tokens routed per step, all ranks together.
        max_over_mean: Load imbalance: the busiest expert's tokens over the mean; 1 is even.
        cv: Standard deviation over mean of the experts' tokens; 0 is even.
        entropy: Entropy of the share of tokens over its largest value, ln E; 1 is even.
        dead_ratio: Share of experts with less than 1 % of the mean, over all steps.
        dropped_ratio: Share of assignments over capacity.
        busiest_expert: The expert with most tokens over all steps.
        busiest_share_ratio: Its share of them.
        lost_ns_per_step: Time that the imbalance costs; None: not measured.
        expert_ns_per_step: Time between dispatch and combine on the slowest rank of each
            micro-batch, forward and backward.
        balanced_ns_per_step: The same if all ranks took the mean.
        replaced_ns_per_step: The same with another placement of experts, with time in proportion to
            tokens.
        part: Part of the data that was counted (a domain), empty for all of it.
        min_over_mean: The least used expert's tokens over the mean, over all steps.
        dead_experts: The dead ones, at most sixteen.
    """

    layer: str
    num_experts: int
    top_k: int
    num_steps: int
    tokens_per_step: float
    max_over_mean: float
    cv: float
    entropy: float
    dead_ratio: float
    dropped_ratio: float
    busiest_expert: int
    busiest_share_ratio: float
    lost_ns_per_step: int | None = None
    expert_ns_per_step: int | None = None
    balanced_ns_per_step: int | None = None
    replaced_ns_per_step: int | None = None
    part: str = ""
    min_over_mean: float | None = None
    dead_experts: tuple[int, ...] = ()


class MoePlacement(Record, frozen=True, kw_only=True):
    """How even the ranks that share the experts of one layer are.

    Args:
        layer: Index or name of it.
        part: Part of the data that was counted, empty for all of it.
        num_ranks: Ranks that share the experts.
        origin: ``all-to-all sizes``, ``routing log`` (experts in contiguous blocks) or ``expert
            counts`` (the same, for a number of ranks that was not measured).
        num_calls: Calls of the layer that the figures are means over: micro-batches of all steps
            and expert-parallel groups.
        tokens_per_call: Assignments of all ranks of a group in a call, mean.
        max_over_mean: The busiest rank's tokens over the mean of its group, mean of all calls.
        worst_max_over_mean: The same in the worst call.
        expert_max_over_mean: The same of experts, mean of all calls; None if experts cannot be
            distinguished.
        replaced_max_over_mean: The same of ranks, if experts were placed by their measured loads.
        rank_of_expert: That placement: which of the group's ranks would hold each expert; empty
            where none was sought.
        lost_ns_per_step: Slowest rank's expert time less the mean rank's; None: not measured.
        expert_ns_per_step: The slowest rank's.
        replaced_ns_per_step: The slowest rank's, if experts were placed anew.
        combine_wait_ns_per_step: Mean wait of the ranks in the all-to-alls that bring tokens back.
    """

    layer: str
    part: str = ""
    num_ranks: int
    origin: str
    num_calls: int
    tokens_per_call: float
    max_over_mean: float
    worst_max_over_mean: float
    expert_max_over_mean: float | None = None
    replaced_max_over_mean: float | None = None
    rank_of_expert: tuple[int, ...] = ()
    lost_ns_per_step: int | None = None
    expert_ns_per_step: int | None = None
    replaced_ns_per_step: int | None = None
    combine_wait_ns_per_step: int | None = None


class MoeRank(Record, frozen=True, kw_only=True):
    """One rank's experts, all layers together.

    Args:
        rank: Global rank.
        group: Ranks that it shares the experts with, itself included.
        tokens_per_step: Assignments to its experts.
        load_ratio: These over the mean of its group.
        expert_ns_per_step: Its time between dispatch and combine; None: not measured.
        combine_wait_ns_per_step: Its wait in the all-to-alls that bring tokens back.
        sent_bytes_per_step: To other ranks, in all exchanges; None where sizes are not known.
        received_bytes_per_step: From other ranks.
    """

    rank: int
    group: tuple[int, ...]
    tokens_per_step: float | None
    load_ratio: float | None
    expert_ns_per_step: int | None = None
    combine_wait_ns_per_step: int | None = None
    sent_bytes_per_step: int | None = None
    received_bytes_per_step: int | None = None


class MoeExchange(Record, frozen=True, kw_only=True):
    """All-to-alls of one group of ranks that share experts.

    Args:
        ranks: Its members.
        num_per_step: All-to-alls that move tokens.
        num_sections_per_step: Pairs of dispatch and combine among them, forward and backward.
        unit: ``bytes``, or ``tokens`` where the size of one is not known.
        amount_per_step: Moved between different ranks.
        sent_max_over_mean: The busiest sender's over the mean, mean of the forward dispatches.
        received_max_over_mean: The busiest receiver's; combine is the same the other way round.
        busiest_sender: Of all dispatches together; None where nothing was moved.
        busiest_receiver: The same.
        transfer_ns_per_step: Time of the exchanges after their last member came; None: not known.
    """

    ranks: tuple[int, ...]
    num_per_step: float
    num_sections_per_step: float
    unit: str
    amount_per_step: int
    sent_max_over_mean: float | None
    received_max_over_mean: float | None
    busiest_sender: int | None
    busiest_receiver: int | None
    transfer_ns_per_step: int | None = None


class MoePair(Record, frozen=True, kw_only=True):
    """What one rank sends another in a step, in the unit of its exchange.

    Args:
        sender: Global rank.
        receiver: Global rank; the sender itself for what stays.
        amount_per_step: In all exchanges.
        dispatched_per_step: In those that bring tokens to their experts.
    """

    sender: int
    receiver: int
    amount_per_step: int
    dispatched_per_step: int


class MoeDrift(Record, frozen=True, kw_only=True):
    """How the routing of one layer changes over the logged steps.

    Args:
        layer: Index or name of it.
        first_step: First step of the first third.
        last_step: Last step of the last third.
        distance: Total-variation distance between the tokens of the first and of the last third of
            the steps: 0 is no change, 1 all tokens go elsewhere.
        chance_distance: What two samples of that many tokens of one distribution show.
        first_max_over_mean: Load imbalance, mean of the first third.
        last_max_over_mean: The same of the last third.
    """

    layer: str
    first_step: int
    last_step: int
    distance: float
    chance_distance: float
    first_max_over_mean: float
    last_max_over_mean: float


class MoeResult(Result, frozen=True, kw_only=True):
    """Experts by layer, the ranks that hold them, and what their imbalance costs.

    Times are means over the analysed steps, and over groups of ranks that share experts.

    Args:
        layers: By the routing log, or by counts.
        origin: Where tokens come from: ``routing log``, ``all-to-all sizes``, ``expert counts``.
        placement: Comparison of ranks, layer by layer.
        ranks: The ranks.
        exchanges: All-to-alls by group.
        pairs: Traffic between pairs of ranks; empty for more than 64 ranks.
        drift: Change over time, layer by layer.
        expert_ns_per_step: Time between dispatch and combine on the slowest rank, all layers.
        lost_ns_per_step: That less the mean rank's: what the imbalance costs.
        balanced_ns_per_step: The mean rank's.
        replaced_ns_per_step: The slowest rank's, if experts were placed anew.
        combine_wait_ns_per_step: Mean wait of the ranks in combine; the loss as the others see it,
            with whatever else makes ranks late.
    """

    layers: tuple[MoeLayer, ...] = ()
    origin: str | None = None
    placement: tuple[MoePlacement, ...] = ()
    ranks: tuple[MoeRank, ...] = ()
    exchanges: tuple[MoeExchange, ...] = ()
    pairs: tuple[MoePair, ...] = ()
    drift: tuple[MoeDrift, ...] = ()
    expert_ns_per_step: int | None = None
    lost_ns_per_step: int | None = None
    balanced_ns_per_step: int | None = None
    replaced_ns_per_step: int | None = None
    combine_wait_ns_per_step: int | None = None
