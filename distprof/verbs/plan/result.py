"""The result of a plan: plain structs, written to JSON unchanged."""

from __future__ import annotations

import msgspec

from distprof.formats import Displayed
from distprof.verbs.plan.layout import Layout

PLAN_SCHEMA = "distprof.plan/1"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns, sizes int bytes, ratios 0 to 1."""


class MemoryParts(_Record, frozen=True, kw_only=True):
    """Memory of the fullest GPU, by part.

    Args:
        weights_bytes: Weights, in bf16.
        gradients_bytes: Gradients, in bf16, or in fp32 if requested.
        optimizer_bytes: Master weights and Adam's two moments, fp32.
        gathered_bytes: Gathered weights of the blocks that are unsharded at the same time.
        activations_bytes: Activations of all micro-batches in flight.
        logits_bytes: Logits of one micro-batch, in fp32 and bf16.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activations_bytes: int
    logits_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, field) for field in self.__struct_fields__)


class AxisCost(_Record, frozen=True, kw_only=True):
    """Communication of one axis, per rank and step.

    Args:
        axis: ``tp``, ``cp``, ``ep``, ``pp``, ``dp``; ``dp-shard`` and ``dp-replicate`` for HSDP.
        ranks: Ranks per group.
        tier: ``scale-up`` or ``inter-node``.
        sent_bytes: Bytes that each rank sends.
        time_ns: Communication time.
        exposed_ns: The part of ``time_ns`` that does not overlap with computation.
    """

    axis: str
    ranks: int
    tier: str
    sent_bytes: int
    time_ns: int
    exposed_ns: int


class TierPosition(_Record, frozen=True, kw_only=True):
    """Position of a layout on the communication roofline of one tier.

    Args:
        tier: ``scale-up`` or ``inter-node``.
        flop_per_byte: FLOP computed per byte sent over the tier.
        ridge: FLOP per byte at which computation and communication take equally long.
        regime: Which of the two limits the step.
    """

    tier: str
    flop_per_byte: float
    ridge: float
    regime: str


class Estimate(_Record, frozen=True, kw_only=True):
    """Costs of one layout.

    Args:
        layout: The layout.
        memory: Memory of the fullest GPU.
        step_ns: Time of one step: computation, bubble, optimizer and exposed communication.
        compute_ns: Computation of the slowest stage over all micro-batches.
        bubble_ns: Idle time while the pipeline fills and drains.
        optimizer_ns: Time in which the optimizer reads and writes the state.
        bubble_fraction: Theoretical idle share of the pipeline's time.
        axes: Communication of each axis with more than one rank.
        tiers: Roofline position of each tier of links in use.
        mfu: Model FLOP utilisation: share of the dense peak.
        hfu: Hardware FLOP utilisation, which includes recomputed FLOP.
        tokens_per_s: Tokens per second of the whole job.
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
        """Exposed communication of all axes."""
        return sum(axis.exposed_ns for axis in self.axes)


class Rejection(_Record, frozen=True, kw_only=True):
    """Layouts that were rejected for the same reason.

    Args:
        reason: The reason in a few words.
        count: Number of layouts; a choice that already fails counts once, without its variants.
        example: The reason with the numbers of one of the layouts.
    """

    reason: str
    count: int
    example: str


class ModelFacts(_Record, frozen=True, kw_only=True):
    """The model that the plan is for."""

    name: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    heads: int
    experts: int


class ClusterFacts(_Record, frozen=True, kw_only=True):
    """The cluster that the plan is for; bandwidths in bytes per second and direction, per GPU."""

    gpu: str
    num_gpus: int
    gpus_per_node: int
    peak_flops: float
    memory_bytes: int
    usable_bytes: int
    scale_up_bandwidth: float
    inter_node_bandwidth: float


class Plan(Displayed, _Record, frozen=True, kw_only=True):
    """A plan: layouts by step time, and why others were rejected.

    Args:
        schema: Schema id of this document.
        version: Version of distprof.
        model: The model.
        cluster: The cluster.
        batch: Sequences per step.
        sequence: Tokens per sequence.
        considered: Number of layouts evaluated.
        fitting: Number of feasible layouts.
        best: The fastest layouts, fastest first; only the requested layout if there is one.
        rejections: Reasons for rejection, most frequent first.
        objections: Objections to the requested layout.
        assumptions: Assumptions of the estimate, one sentence each.
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
