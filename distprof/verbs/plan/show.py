"""Verdict, sentences and tables of a plan, ready to render."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import ClassVar

import msgspec

from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.formats import RenderOptions
from distprof.rules.base import Evidence
from distprof.sections.table import Column, TableView, counted, present, rows_table
from distprof.terms import Severity, Subject
from distprof.units import format_bandwidth, format_bytes, format_duration, format_ratio
from distprof.verbs.displayed import Displayed
from distprof.verbs.plan.layout import Layout, Objection

PLAN_SCHEMA = "distprof.plan/1"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns, sizes int bytes, ratios 0 to 1."""


class MemoryParts(_Record, frozen=True, kw_only=True):
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


class AxisCost(_Record, frozen=True, kw_only=True):
    """Communication of one axis, per rank and step."""

    axis: str  # ``tp``, ``cp``, ``ep``, ``pp``, ``dp``; ``dp-shard`` and ``dp-replicate`` for HSDP.
    ranks: int  # Ranks per group.
    tier: str  # ``scale-up`` or ``inter-node``.
    sent_bytes: int  # Bytes that each rank sends.
    time_ns: int  # Communication time.
    exposed_ns: int  # The part of ``time_ns`` that does not overlap with computation.


class TierPosition(_Record, frozen=True, kw_only=True):
    """Position of a layout on the communication roofline of one tier."""

    tier: str  # ``scale-up`` or ``inter-node``.
    flop_per_byte: float  # FLOP computed per byte sent over the tier.
    ridge: float  # FLOP per byte at which computation and communication take equally long.
    regime: str  # Which of the two limits the step.


class Estimate(_Record, frozen=True, kw_only=True):
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


class Rejection(_Record, frozen=True, kw_only=True):
    """Layouts that were rejected for the same reason."""

    reason: str  # The reason in a few words.
    count: int  # Number of layouts; a choice that already fails counts once, without its variants.
    example: str  # The reason with the numbers of one of the layouts.


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
    """A plan: layouts by step time, and why others were rejected."""

    schema: str = PLAN_SCHEMA  # Schema id of this document.
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


LINT_SCHEMA = "distprof.plan-lint/1"


class ConfigurationResult(
    msgspec.Struct, Evidence, frozen=True, kw_only=True, forbid_unknown_fields=True
):
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


class ConfigurationFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem of a configuration. It is modelled: no step has run."""

    code: str  # Code of the rule, never reused, for example ``CFG111``.
    severity: Severity  # ``error`` if the configuration cannot run.
    headline: str  # The problem, in at most 80 characters.
    message: str  # The numbers behind it.
    fix: str  # How to fix it.


class Lint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Problems and costs of a configuration."""

    schema: str = LINT_SCHEMA  # Schema id of this document.
    version: str  # Version of distprof.
    source: str  # The configuration file.
    kind: str  # Program that the configuration is for.
    layout: Layout  # The layout that it describes.
    findings: tuple[ConfigurationFinding, ...]  # Problems, errors first.
    estimate: Estimate | None  # Costs of the layout; None if it cannot run.
    not_read: tuple[str, ...]  # Keys that distprof does not use.
    assumptions: tuple[str, ...]  # Assumptions of the estimate, one sentence each.


_FEW = 10

MEMORY = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "gathered_bytes": "gathered blocks",
    "activations_bytes": "activations",
    "logits_bytes": "logits",
}
"""Names of the parts of a GPU's memory in reports."""


def verdict(plan: Plan) -> str:
    """The fastest layout, or why there is none, in one sentence."""
    if plan.objections:
        return f"This layout cannot run: {plan.objections[0]}."
    if not plan.best:
        most = plan.rejections[0].reason if plan.rejections else "no candidate"
        return f"No layout fits. Main reason among {counted(plan.considered, 'layout')}: {most}."
    best = plan.best[0]
    costs = f"{format_duration(best.step_ns)}/step, {format_ratio(best.mfu)} MFU"
    room = f"{format_bytes(best.memory.total_bytes)} of {format_bytes(plan.cluster.usable_bytes)}"
    if plan.considered == 1:
        return f"{best.layout.text}: {costs}, {room} of memory."
    feasible = counted(plan.fitting, "feasible layout")
    return f"Fastest of {feasible}: {layout_name(best.layout)}, {costs}, {room} of memory."


def layout_name(layout: Layout) -> str:
    """Short name of a layout, for example ``dp=128 × tp=4, FSDP``."""
    degrees = {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep")}
    kept = [f"{axis}={size}" for axis, size in degrees.items() if size > 1 or axis == "dp"]
    sharding = layout.sharding.upper().replace("ZERO", "ZeRO")
    if layout.sharding == "hsdp":
        sharding += f" in groups of {layout.num_shards}"
    return f"{' × '.join(kept)}, {sharding}"


def origin(plan: Plan) -> str:
    """The model, the cluster and the batch that the plan is for."""
    model, cluster = plan.model, plan.cluster
    size = f"{model.parameters / 1e9:,.1f} B parameters"
    if model.active_parameters != model.parameters:
        size += f", {model.active_parameters / 1e9:,.1f} B active"
    nodes = f"{cluster.num_gpus:,} {cluster.gpu}, {cluster.gpus_per_node} per node"
    links = (
        f"{format_bandwidth(cluster.scale_up_bandwidth)} per GPU within a node,"
        f" {format_bandwidth(cluster.inter_node_bandwidth)} per GPU between nodes"
    )
    batch = f"{counted(plan.batch, 'sequence')} of {plan.sequence:,} tokens per step"
    return f"{model.name}, {size} · {nodes}, {links} · {batch} · modelled"


def reasons(plan: Plan) -> Iterator[str]:
    """The reasons for the verdict, one sentence each."""
    yield from (f"Also: {text}." for text in plan.objections[1:])
    if not plan.best:
        return
    best = plan.best[0]
    parts = {
        "computation": best.compute_ns,
        "exposed communication": best.exposed_ns,
        "bubble": best.bubble_ns,
        "optimizer": best.optimizer_ns,
    }
    whole = max(best.step_ns, 1)
    shares = [f"{format_ratio(ns / whole)} {name}" for name, ns in parts.items() if ns > 0]
    yield f"The step is {', '.join(shares)}."
    for position in best.tiers:
        yield (
            f"The job does {position.flop_per_byte:,.0f} FLOP per byte over {position.tier}"
            f" links (ridge point {position.ridge:,.0f}): {position.regime}."
        )
    if plan.considered > 1:
        yield f"{plan.fitting:,} of {counted(plan.considered, 'layout')} are feasible."
        yield f"To see the fastest one alone: --layout {best.layout.text}."


def plan_tables(plan: Plan, *, show_all: bool) -> Iterator[TableView | None]:
    """Tables of layouts, memory, communication and rejections, if there are any."""
    best = plan.best[:1]
    if len(plan.best) > 1:
        yield rows_table(
            "Layouts",
            _LAYOUT,
            plan.best if show_all else plan.best[:_FEW],
            caption="fastest first; mb: sequences per micro-batch, V: stages per rank",
            strong=(0,),
        )
    yield from (_memory_table(each) for each in best)
    yield from (
        rows_table("Communication", _AXIS, each.axes, caption="per rank and step") for each in best
    )
    yield rows_table(
        "Rejected",
        _REJECTION,
        plan.rejections,
        caption="a choice that already fails counts once, without its variants",
    )


def _sharding(found: Estimate) -> str:
    layout = found.layout
    return layout.sharding + (f" {layout.shards}" if layout.shards else "")


_LAYOUT = (
    *(Column(axis, f"layout.{axis}", form="id") for axis in ("dp", "tp", "pp", "cp", "ep")),
    Column("sharding", _sharding, left=True),
    Column("recompute", "layout.recomputation", left=True),
    Column("mb×number", lambda one: f"{one.layout.micro_batch}×{one.layout.micro_batches}"),
    Column("step", "step_ns"),
    Column("MFU", "mfu", form="ratio"),
    Column("memory", "memory.total_bytes"),
    Column("bubble", "bubble_fraction", wide_only=True),
    Column("exposed", "exposed_ns", wide_only=True),
    Column("V", "layout.virtual_stages", form="id", wide_only=True),
)
_AXIS = (
    Column("axis", "axis", left=True),
    Column("ranks", "ranks", form="count"),
    Column("links", "tier", left=True),
    Column("sent", "sent_bytes"),
    Column("time", "time_ns"),
    Column("exposed", "exposed_ns"),
)
_REJECTION = (
    Column("layouts", "count"),
    Column("reason", "reason", left=True),
    Column("for example", "example", left=True, wrap=True),
)


def _memory_table(found: Estimate) -> TableView | None:
    sizes = {label: getattr(found.memory, key) for key, label in MEMORY.items()}
    shown = [(label, size) for label, size in sizes.items() if size]
    return rows_table(
        "Memory",
        (Column("part", itemgetter(0), left=True), Column("size", itemgetter(1), form="bytes")),
        [*shown, ("total", found.memory.total_bytes)],
        caption="the fullest GPU, in the first or the last stage",
        strong=(len(shown),),
    )


def _page(plan: Plan, options: RenderOptions) -> Page:
    return Page(
        verdict=verdict(plan),
        origin=origin(plan),
        sentences=tuple(reasons(plan)),
        tables=present(plan_tables(plan, show_all=options.show_all)),
        remarks=plan.assumptions,
        remarks_title="Assumed",
    )


PLAN = Document(
    kind=Plan,
    schema=PLAN_SCHEMA,
    noun="a plan",
    title="distprof plan",
    fix="make it again with: distprof plan … --format json",
    page=_page,
)
