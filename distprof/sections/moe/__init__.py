"""Mixtures of experts in a report."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class MoeLayer(Record, frozen=True, kw_only=True):
    """One mixture-of-experts layer."""

    layer: str  # Index or name of the layer.
    num_experts: int  # Number of experts of the layer, on all ranks.
    top_k: int  # Experts per token; 0 if unknown.
    num_steps: int  # Steps that the figures are means over.
    tokens_per_step: float  # Tokens routed per step, all ranks together.
    max_over_mean: float  # Load imbalance: the busiest expert's tokens over the mean; 1 is even.
    cv: float  # Standard deviation over mean of the experts' tokens; 0 is even.
    entropy: float  # Entropy of the experts' shares of tokens over its maximum, ln E; 1 is even.
    dead_ratio: float  # Share of experts with less than 1 % of the mean, over all steps.
    dropped_ratio: float  # Share of assignments dropped because of capacity.
    busiest_expert: int  # The expert with the most tokens over all steps.
    busiest_share_ratio: float  # Share of all tokens that it gets.
    lost_ns_per_step: int | None = None  # Time lost to the imbalance; null if not measured.
    # Time between dispatch and combine on the slowest rank of each micro-batch, forward and
    # backward.
    expert_ns_per_step: int | None = None
    balanced_ns_per_step: int | None = None  # That time if all ranks took the mean.
    # That time with another placement of experts, modelled in proportion to tokens.
    replaced_ns_per_step: int | None = None
    part: str = ""  # Part of the data that was counted (a domain), empty for all of it.
    # The least used expert's tokens over the mean, over all steps.
    min_over_mean: float | None = None
    dead_experts: tuple[int, ...] = ()  # The dead experts, at most 16.


class MoePlacement(Record, frozen=True, kw_only=True):
    """Balance of the ranks that share the experts of one layer."""

    layer: str  # Index or name of the layer.
    part: str = ""  # Part of the data that was counted, empty for all of it.
    num_ranks: int  # Ranks that share the experts.
    # ``all-to-all sizes``, ``routing log`` (experts in contiguous blocks) or ``expert counts``
    # (contiguous blocks on a hypothetical number of ranks).
    origin: str
    # Calls of the layer that the figures are means over: micro-batches of all steps and
    # expert-parallel groups.
    num_calls: int
    tokens_per_call: float  # Assignments of all ranks of a group in a call, mean.
    max_over_mean: float  # The busiest rank's tokens over the mean of its group, mean over calls.
    worst_max_over_mean: float  # The busiest rank's tokens over the mean in the worst call.
    # The busiest expert's tokens over the mean, mean over calls; null if experts cannot be
    # distinguished.
    expert_max_over_mean: float | None = None
    # ``max_over_mean`` if experts were placed by their measured loads.
    replaced_max_over_mean: float | None = None
    # That placement: position in the group of the rank for each expert; empty if none was computed.
    rank_of_expert: tuple[int, ...] = ()
    # Slowest rank's expert time less the mean rank's; null if not measured.
    lost_ns_per_step: int | None = None
    expert_ns_per_step: int | None = None  # Expert time of the slowest rank.
    replaced_ns_per_step: int | None = None  # Expert time of the slowest rank with that placement.
    # Mean wait of the ranks in the all-to-alls that return tokens.
    combine_wait_ns_per_step: int | None = None


class MoeRank(Record, frozen=True, kw_only=True):
    """One rank's experts, all layers together."""

    rank: int  # Global rank.
    group: tuple[int, ...]  # Ranks that share the experts, including this one.
    tokens_per_step: float | None  # Assignments to its experts; null if unknown.
    load_ratio: float | None  # Assignments over the mean of its group; null if unknown.
    # Time between dispatch and combine; null if not measured.
    expert_ns_per_step: int | None = None
    # Wait in the all-to-alls that return tokens; null if unknown.
    combine_wait_ns_per_step: int | None = None
    # Bytes sent to other ranks in all exchanges; null if sizes are unknown.
    sent_bytes_per_step: int | None = None
    # Bytes received from other ranks; null if sizes are unknown.
    received_bytes_per_step: int | None = None


class MoeExchange(Record, frozen=True, kw_only=True):
    """All-to-alls of one group of ranks that share experts."""

    ranks: tuple[int, ...]  # Members of the group.
    num_per_step: float  # Number of all-to-alls that move tokens.
    num_sections_per_step: float  # Pairs of dispatch and combine among them, forward and backward.
    unit: str  # ``bytes``, or ``tokens`` if the size of a token is unknown.
    amount_per_step: int  # Amount moved between different ranks.
    # The busiest sender's amount over the mean, mean over forward dispatches.
    sent_max_over_mean: float | None
    # The busiest receiver's amount over the mean. Combine is the reverse.
    received_max_over_mean: float | None
    # Rank that sends most over all dispatches; null if nothing was moved.
    busiest_sender: int | None
    busiest_receiver: int | None  # Rank that receives most, likewise.
    # Time of the exchanges after the last member arrived; null if unknown.
    transfer_ns_per_step: int | None = None


class MoePair(Record, frozen=True, kw_only=True):
    """Amount that one rank sends another per step, in the unit of its exchange."""

    sender: int  # Global rank.
    receiver: int  # Global rank; equals the sender for tokens that stay on the rank.
    amount_per_step: int  # Amount in all exchanges.
    dispatched_per_step: int  # Amount in the forward dispatches.


class MoeDrift(Record, frozen=True, kw_only=True):
    """How the routing of one layer changes over the logged steps."""

    layer: str  # Index or name of the layer.
    first_step: int  # First step of the first third.
    last_step: int  # Last step of the last third.
    # Total-variation distance between the token distributions of the first and the last third of
    # the steps. 0 is no change, and 1 means that all tokens go elsewhere.
    distance: float
    chance_distance: float  # Expected distance of two samples of that size from one distribution.
    first_max_over_mean: float  # Load imbalance, mean of the first third.
    last_max_over_mean: float  # Load imbalance, mean of the last third.


class MoeResult(Result, frozen=True, kw_only=True):
    """Experts by layer, the ranks that hold them, and the cost of their imbalance.

    Times are means over the analysed steps, and over groups of ranks that share experts.
    """

    layers: tuple[MoeLayer, ...] = ()  # Expert load by layer, from the routing log or from counts.
    # Source of the tokens: ``routing log``, ``all-to-all sizes``, ``expert counts``.
    origin: str | None = None
    placement: tuple[MoePlacement, ...] = ()  # Balance of the ranks that share experts, by layer.
    ranks: tuple[MoeRank, ...] = ()  # Load, expert time and traffic by rank.
    exchanges: tuple[MoeExchange, ...] = ()  # All-to-alls by group.
    pairs: tuple[MoePair, ...] = ()  # Traffic between pairs of ranks; empty for more than 64 ranks.
    drift: tuple[MoeDrift, ...] = ()  # Change of the routing over time, by layer.
    # Time between dispatch and combine on the slowest rank, all layers.
    expert_ns_per_step: int | None = None
    # Expert time of the slowest rank less that of the mean rank: the cost of the imbalance.
    lost_ns_per_step: int | None = None
    balanced_ns_per_step: int | None = None  # Expert time of the mean rank.
    # Expert time of the slowest rank with another placement of experts.
    replaced_ns_per_step: int | None = None
    # Mean wait of the ranks in combine. It includes the loss, and any other lateness of ranks.
    combine_wait_ns_per_step: int | None = None

    @property
    def typical_placement(self) -> tuple[MoePlacement, ...]:
        """One row per part and layer: of several numbers of ranks, the one nearest to eight."""
        best: dict[tuple[str, str], MoePlacement] = {}
        for row in self.placement:
            best_yet = best.setdefault((row.part, row.layer), row)
            if abs(row.num_ranks - 8) < abs(best_yet.num_ranks - 8):
                best[row.part, row.layer] = row
        return tuple(best.values())
