"""Mixtures of experts in a report.

Computed by :mod:`distprof.sections.moe.routing` (the choices of the routers),
:mod:`distprof.sections.moe.exchange` (all-to-alls and the time between them) and
:mod:`distprof.sections.moe.measure`, which joins the two.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class MoeLayer(Record, frozen=True, kw_only=True):
    """One mixture-of-experts layer.

    Args:
        layer: Index or name of the layer.
        num_experts: Number of experts of the layer, on all ranks.
        top_k: Experts per token; 0 if unknown.
        num_steps: Steps that the figures are means over.
        tokens_per_step: Tokens routed per step, all ranks together.
        max_over_mean: Load imbalance: the busiest expert's tokens over the mean; 1 is even.
        cv: Standard deviation over mean of the experts' tokens; 0 is even.
        entropy: Entropy of the experts' shares of tokens over its maximum, ln E; 1 is even.
        dead_ratio: Share of experts with less than 1 % of the mean, over all steps.
        dropped_ratio: Share of assignments dropped because of capacity.
        busiest_expert: The expert with the most tokens over all steps.
        busiest_share_ratio: Share of all tokens that it gets.
        lost_ns_per_step: Time lost to the imbalance; null if not measured.
        expert_ns_per_step: Time between dispatch and combine on the slowest rank of each
            micro-batch, forward and backward.
        balanced_ns_per_step: That time if all ranks took the mean.
        replaced_ns_per_step: That time with another placement of experts, modelled in proportion to
            tokens.
        part: Part of the data that was counted (a domain), empty for all of it.
        min_over_mean: The least used expert's tokens over the mean, over all steps.
        dead_experts: The dead experts, at most 16.
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
    """Balance of the ranks that share the experts of one layer.

    Args:
        layer: Index or name of the layer.
        part: Part of the data that was counted, empty for all of it.
        num_ranks: Ranks that share the experts.
        origin: ``all-to-all sizes``, ``routing log`` (experts in contiguous blocks) or ``expert
            counts`` (contiguous blocks on a hypothetical number of ranks).
        num_calls: Calls of the layer that the figures are means over: micro-batches of all steps
            and expert-parallel groups.
        tokens_per_call: Assignments of all ranks of a group in a call, mean.
        max_over_mean: The busiest rank's tokens over the mean of its group, mean over calls.
        worst_max_over_mean: The busiest rank's tokens over the mean in the worst call.
        expert_max_over_mean: The busiest expert's tokens over the mean, mean over calls; null if
            experts cannot be distinguished.
        replaced_max_over_mean: ``max_over_mean`` if experts were placed by their measured loads.
        rank_of_expert: That placement: position in the group of the rank for each expert; empty if
            none was computed.
        lost_ns_per_step: Slowest rank's expert time less the mean rank's; null if not measured.
        expert_ns_per_step: Expert time of the slowest rank.
        replaced_ns_per_step: Expert time of the slowest rank with that placement.
        combine_wait_ns_per_step: Mean wait of the ranks in the all-to-alls that return tokens.
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
        group: Ranks that share the experts, including this one.
        tokens_per_step: Assignments to its experts; null if unknown.
        load_ratio: Assignments over the mean of its group; null if unknown.
        expert_ns_per_step: Time between dispatch and combine; null if not measured.
        combine_wait_ns_per_step: Wait in the all-to-alls that return tokens; null if unknown.
        sent_bytes_per_step: Bytes sent to other ranks in all exchanges; null if sizes are unknown.
        received_bytes_per_step: Bytes received from other ranks; null if sizes are unknown.
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
        ranks: Members of the group.
        num_per_step: Number of all-to-alls that move tokens.
        num_sections_per_step: Pairs of dispatch and combine among them, forward and backward.
        unit: ``bytes``, or ``tokens`` if the size of a token is unknown.
        amount_per_step: Amount moved between different ranks.
        sent_max_over_mean: The busiest sender's amount over the mean, mean over forward dispatches.
        received_max_over_mean: The busiest receiver's amount over the mean. Combine is the reverse.
        busiest_sender: Rank that sends most over all dispatches; null if nothing was moved.
        busiest_receiver: Rank that receives most, likewise.
        transfer_ns_per_step: Time of the exchanges after the last member arrived; null if unknown.
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
    """Amount that one rank sends another per step, in the unit of its exchange.

    Args:
        sender: Global rank.
        receiver: Global rank; equals the sender for tokens that stay on the rank.
        amount_per_step: Amount in all exchanges.
        dispatched_per_step: Amount in the forward dispatches.
    """

    sender: int
    receiver: int
    amount_per_step: int
    dispatched_per_step: int


class MoeDrift(Record, frozen=True, kw_only=True):
    """How the routing of one layer changes over the logged steps.

    Args:
        layer: Index or name of the layer.
        first_step: First step of the first third.
        last_step: Last step of the last third.
        distance: Total-variation distance between the token distributions of the first and the last
            third of the steps. 0 is no change, and 1 means that all tokens go elsewhere.
        chance_distance: Expected distance of two samples of that size from one distribution.
        first_max_over_mean: Load imbalance, mean of the first third.
        last_max_over_mean: Load imbalance, mean of the last third.
    """

    layer: str
    first_step: int
    last_step: int
    distance: float
    chance_distance: float
    first_max_over_mean: float
    last_max_over_mean: float


class MoeResult(Result, frozen=True, kw_only=True):
    """Experts by layer, the ranks that hold them, and the cost of their imbalance.

    Times are means over the analysed steps, and over groups of ranks that share experts.

    Args:
        layers: Expert load by layer, from the routing log or from counts.
        origin: Source of the tokens: ``routing log``, ``all-to-all sizes``, ``expert counts``.
        placement: Balance of the ranks that share experts, by layer.
        ranks: Load, expert time and traffic by rank.
        exchanges: All-to-alls by group.
        pairs: Traffic between pairs of ranks; empty for more than 64 ranks.
        drift: Change of the routing over time, by layer.
        expert_ns_per_step: Time between dispatch and combine on the slowest rank, all layers.
        lost_ns_per_step: Expert time of the slowest rank less that of the mean rank: the cost of
            the imbalance.
        balanced_ns_per_step: Expert time of the mean rank.
        replaced_ns_per_step: Expert time of the slowest rank with another placement of experts.
        combine_wait_ns_per_step: Mean wait of the ranks in combine. It includes the loss, and any
            other lateness of ranks.
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
