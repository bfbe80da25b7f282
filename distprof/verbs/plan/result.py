"""What planning answers: plain structs, written as JSON as they are."""

from __future__ import annotations

import msgspec

from distprof.verbs.plan.layout import Layout

__all__ = [
    "PLAN_SCHEMA",
    "AxisCost",
    "ClusterFacts",
    "Estimate",
    "MemoryParts",
    "ModelFacts",
    "Plan",
    "Rejection",
    "TierPosition",
]

PLAN_SCHEMA = "distprof.plan/1"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns, sizes int bytes, ratios 0 to 1."""


class MemoryParts(_Record, frozen=True, kw_only=True):
    """Memory of the fullest GPU, by part.

    Args:
        weights_bytes: In bf16.
        gradients_bytes: In bf16, or fp32 if asked.
        optimizer_bytes: Master weights and Adam's two moments, fp32.
        gathered_bytes: Blocks whose weights are unsharded at once.
        activations_bytes: Of all micro-batches in flight.
        logits_bytes: Of one micro-batch, in fp32 and bf16.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activations_bytes: int
    logits_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return sum(getattr(self, field) for field in self.__struct_fields__)


class AxisCost(_Record, frozen=True, kw_only=True):
    """Communication of one axis, of one rank and step.

    Args:
        axis: ``tp``, ``cp``, ``ep``, ``pp``, ``dp``; of HSDP ``dp-shard`` and ``dp-replicate``.
        ranks: Of its group.
        tier: ``scale-up`` or ``inter-node``.
        sent_bytes: By each rank.
        time_ns: On the wire.
        exposed_ns: Of it, what computation does not hide.
    """

    axis: str
    ranks: int
    tier: str
    sent_bytes: int
    time_ns: int
    exposed_ns: int


class TierPosition(_Record, frozen=True, kw_only=True):
    """Where a layout lies on the communication roofline of one tier.

    Args:
        tier: ``scale-up`` or ``inter-node``.
        flop_per_byte: Computed per byte sent over it.
        ridge: At which both take equally long.
        regime: What that means.
    """

    tier: str
    flop_per_byte: float
    ridge: float
    regime: str


class Estimate(_Record, frozen=True, kw_only=True):
    """What one layout costs.

    Args:
        layout: Which.
        memory: Of the fullest GPU.
        step_ns: One step: all the times below that are not on the wire.
        compute_ns: Of the slowest stage, all micro-batches.
        bubble_ns: Idle for the pipeline's fill and drain.
        optimizer_ns: Reading and writing of the state.
        bubble_fraction: Idle over total of the pipeline, by formula.
        axes: Communication by axis; those of one rank are left out.
        tiers: Roofline by tier of links in use.
        mfu: Model FLOP over dense peak.
        hfu: The same with recomputed FLOP.
        tokens_per_s: Of the whole job.
    """

    layout: Layout
    memory: MemoryParts
    step_ns: int
    compute_ns: int
    bubble_ns: int
    optimizer_ns: int
    bubble_fraction: float
    axes: tuple[AxisCost, ...]
    tiers: tuple[TierPosition, ...]
    mfu: float
    hfu: float
    tokens_per_s: float

    @property
    def exposed_ns(self) -> int:
        """Communication that nothing hides, all axes."""
        return sum(axis.exposed_ns for axis in self.axes)


class Rejection(_Record, frozen=True, kw_only=True):
    """Layouts that were refused for one reason.

    Args:
        reason: In a few words.
        count: How many; a choice that already fails counts once, before others are varied in it.
        example: One of them, with its numbers.
    """

    reason: str
    count: int
    example: str


class ModelFacts(_Record, frozen=True, kw_only=True):
    """The model that was planned for."""

    name: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    heads: int
    experts: int


class ClusterFacts(_Record, frozen=True, kw_only=True):
    """The cluster that was planned for; bandwidths in bytes per second and direction, per GPU."""

    gpu: str
    num_gpus: int
    gpus_per_node: int
    peak_flops: float
    memory_bytes: int
    usable_bytes: int
    scale_up_bandwidth: float
    inter_node_bandwidth: float


class Plan(_Record, frozen=True, kw_only=True):
    """The answer: layouts by step time, and why others were refused.

    Args:
        schema: Of this document.
        version: Of distprof.
        model: Planned for.
        cluster: Planned for.
        batch: Sequences of a step.
        sequence: Tokens of a sequence.
        considered: Layouts that were looked at.
        fitting: Those that can be.
        best: The fastest ones, fastest first; one layout asked for stands alone.
        rejections: Most frequent first.
        objections: To the one layout that was asked for.
        assumptions: What the estimate rests on, one sentence each.
    """

    schema: str = PLAN_SCHEMA
    version: str
    model: ModelFacts
    cluster: ClusterFacts
    batch: int
    sequence: int
    considered: int
    fitting: int
    best: tuple[Estimate, ...]
    rejections: tuple[Rejection, ...]
    objections: tuple[str, ...]
    assumptions: tuple[str, ...]
