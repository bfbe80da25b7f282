"""The results of a plan and of its checks: plain structs, written to JSON unchanged."""

from __future__ import annotations

from typing import ClassVar

from distprof.artefacts.record import Record
from distprof.rules.base import Evidence
from distprof.terms import Severity, Subject
from distprof.verbs import Displayed
from distprof.verbs.plan.layout import Layout, Objection


class MemoryParts(Record, frozen=True, kw_only=True):
    """Memory of the fullest GPU, by part."""

    weights_bytes: int  # Weights, in bf16.
    gradients_bytes: int  # Gradients, in bf16, or in fp32 if requested.
    optimizer_bytes: int  # Master weights and Adam's two moments, fp32.
    gathered_bytes: int  # Gathered weights of the blocks that are unsharded at the same time.
    activations_bytes: int  # Activations of all micro-batches in flight.
    logits_bytes: int  # Logits of one micro-batch, in fp32 and bf16.

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, field) for field in self.__struct_fields__)


class AxisCost(Record, frozen=True, kw_only=True):
    """Communication of one axis, per rank and step."""

    axis: str  # ``tp``, ``cp``, ``ep``, ``pp``, ``dp``; ``dp-shard`` and ``dp-replicate`` for HSDP.
    ranks: int  # Ranks per group.
    tier: str  # ``scale-up`` or ``inter-node``.
    sent_bytes: int  # Bytes that each rank sends.
    time_ns: int  # Communication time.
    exposed_ns: int  # The part of ``time_ns`` that does not overlap with computation.


class TierPosition(Record, frozen=True, kw_only=True):
    """Position of a layout on the communication roofline of one tier."""

    tier: str  # ``scale-up`` or ``inter-node``.
    flop_per_byte: float  # FLOP computed per byte sent over the tier.
    ridge: float  # FLOP per byte at which computation and communication take equally long.
    regime: str  # Which of the two limits the step.


class Estimate(Record, frozen=True, kw_only=True):
    """Costs of one layout."""

    layout: Layout  # The layout.
    memory: MemoryParts  # Memory of the fullest GPU.
    step_ns: int  # Time of one step: computation, bubble, optimizer and exposed communication.
    compute_ns: int  # Computation of the slowest stage over all micro-batches.
    bubble_ns: int  # Idle time while the pipeline fills and drains.
    optimizer_ns: int  # Time in which the optimizer reads and writes the state.
    bubble_fraction: float  # Theoretical idle share of the pipeline's time.
    axes: tuple[AxisCost, ...]  # Communication of each axis with more than one rank.
    tiers: tuple[TierPosition, ...]  # Roofline position of each tier of links in use.
    mfu: float  # Model FLOP utilisation: share of the dense peak.
    hfu: float  # Hardware FLOP utilisation, which includes recomputed FLOP.
    tokens_per_s: float  # Tokens per second of the whole job.

    @property
    def exposed_ns(self) -> int:
        """Exposed communication of all axes."""
        return sum(axis.exposed_ns for axis in self.axes)


class Rejection(Record, frozen=True, kw_only=True):
    """Layouts that were rejected for the same reason."""

    reason: str  # The reason in a few words.
    count: int  # Number of layouts; a choice that already fails counts once, without its variants.
    example: str  # The reason with the numbers of one of the layouts.


class ModelFacts(Record, frozen=True, kw_only=True):
    """The model that the plan is for."""

    name: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    heads: int
    experts: int


class ClusterFacts(Record, frozen=True, kw_only=True):
    """The cluster that the plan is for; bandwidths in bytes per second and direction, per GPU."""

    gpu: str
    num_gpus: int
    gpus_per_node: int
    peak_flops: float
    memory_bytes: int
    usable_bytes: int
    scale_up_bandwidth: float
    inter_node_bandwidth: float


class Plan(Displayed, Record, frozen=True, kw_only=True):
    """A plan: layouts by step time, and why others were rejected."""

    schema: str = "distprof.plan/1"  # Schema id of this document.
    version: str  # Version of distprof.
    model: ModelFacts  # The model.
    cluster: ClusterFacts  # The cluster.
    batch: int  # Sequences per step.
    sequence: int  # Tokens per sequence.
    considered: int  # Number of layouts evaluated.
    fitting: int  # Number of feasible layouts.
    # The fastest layouts, fastest first; only the requested layout if there is one.
    best: tuple[Estimate, ...]
    rejections: tuple[Rejection, ...]  # Reasons for rejection, most frequent first.
    objections: tuple[str, ...]  # Objections to the requested layout.
    assumptions: tuple[str, ...]  # Assumptions of the estimate, one sentence each.


class ConfigurationResult(Record, Evidence, frozen=True, kw_only=True):
    """A layout, the objections to it and its costs. All are modelled: no step has run."""

    subject: ClassVar[Subject] = Subject.CONFIGURATION

    layout: Layout  # The layout.
    objections: tuple[Objection, ...] = ()  # Reasons against it, except memory.
    usable_bytes: float  # Memory of a GPU that the layout may fill.
    memory: MemoryParts | None = None  # Memory of the fullest GPU; None if the layout cannot run.
    estimate: Estimate | None = None  # Its costs; None if it cannot run.
    # The same layout with half as many micro-batches of twice the size; None with pipeline stages,
    # or if the number of micro-batches is odd.
    larger: Layout | None = None
    larger_bytes: int | None = None  # Memory that ``larger`` takes.
    # Memory without any sharding; None if the layout does not shard weights.
    plain_bytes: int | None = None


class ConfigurationFinding(Record, frozen=True, kw_only=True):
    """One problem of a configuration. It is modelled: no step has run."""

    code: str  # Code of the rule, never reused, for example ``CFG111``.
    severity: Severity  # ``error`` if the configuration cannot run.
    headline: str  # The problem, in at most 80 characters.
    message: str  # The numbers behind it.
    fix: str  # How to fix it.


class Lint(Record, frozen=True, kw_only=True):
    """Problems and costs of a configuration."""

    schema: str = "distprof.plan-lint/1"  # Schema id of this document.
    version: str  # Version of distprof.
    source: str  # The configuration file.
    kind: str  # Program that the configuration is for.
    layout: Layout  # The layout that it describes.
    findings: tuple[ConfigurationFinding, ...]  # Problems, errors first.
    estimate: Estimate | None  # Costs of the layout; None if it cannot run.
    not_read: tuple[str, ...]  # Keys that distprof does not use.
    assumptions: tuple[str, ...]  # Assumptions of the estimate, one sentence each.
