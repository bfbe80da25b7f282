"""Verdict, sentences and tables of a plan, ready to render."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted, present, rows_table
from distprof.units import format_bytes, format_duration, format_ratio
from distprof.verbs.plan import Estimate, Plan
from distprof.verbs.plan.layout import TABLE, Layout, says

_FEW = 10

MEMORY: Mapping[str, str] = TABLE["memory"]
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
    links = says("links", cluster=cluster)
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
    yield from (says("position", at=position) for position in best.tiers)
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


_LAYOUT = (
    *(Column(axis, f"layout.{axis}", form="id") for axis in ("dp", "tp", "pp", "cp", "ep")),
    Column(
        "sharding", lambda e: f"{e.layout.sharding} {e.layout.shards or ''}".rstrip(), left=True
    ),
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
    noun="a plan",
    fix="make it again with: distprof plan … --format json",
    page=_page,
)
