"""Rules on planned layouts, and on those that cannot or should not run: one per kind of objection.

:func:`distprof.verbs.plan.layout.objections` finds the objections; ``objections.toml`` defines the
code, the page and the fix of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from distprof.escape import fitting
from distprof.rules.base import Draft, Limit, Limits, Rule, rule
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_bytes, format_ratio
from distprof.verbs.plan import ConfigurationResult
from distprof.verbs.plan.layout import TABLE, says


def _row(*, code: str, name: str, severity: str, kind: str, fix: str, page: str) -> Rule:
    """Build the rule on one kind of objection."""

    def check(configuration: ConfigurationResult) -> Iterator[Draft]:
        for objection in configuration.objections:
            if objection.kind == kind:
                yield Draft(
                    headline=fitting(
                        f"{capitalized(kind)}: {objection.message}", f"Layout: {objection.message}"
                    ),
                    message="The configuration alone shows it.",
                    fix=fix,
                    confidence=Confidence.MODELLED,
                    evidence=("configuration.objections",),
                )

    check.__name__, check.__doc__ = name, page
    made = rule(code, Severity(severity), costs_time=False)(check)
    return replace(made, shared=TABLE["shared"])


RULES = tuple(_row(**each) for each in TABLE["rule"])


@rule("CFG111", Severity.ERROR, costs_time=False)
def configuration_beyond_memory(
    configuration: ConfigurationResult,
) -> Iterator[Draft]:
    """Weights, gradients, optimizer state and activations of a layout take more memory than a GPU
    may use.
    """
    memory, usable = configuration.memory, configuration.usable_bytes
    if memory is None or memory.total_bytes <= usable:
        return
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    yield Draft(
        headline=f"The job does not fit: it needs {format_bytes(memory.total_bytes)} per GPU",
        message=says("no room", state=state, usable=usable),
        fix=_fix(configuration, state),
        confidence=Confidence.MODELLED,
        evidence=("configuration.memory", "configuration.usable_bytes"),
    )


def _fix(configuration: ConfigurationResult, state_bytes: int) -> str:
    if state_bytes <= configuration.usable_bytes:
        return "Use a smaller micro-batch, full recomputation, or more tp."
    if configuration.layout.sharding == "ddp":
        return "Shard the state: use zero-1 or fsdp."
    return "Shard more of the state, or divide the model by tp and pp."


@rule(
    "CFG112",
    Severity.WARNING,
    max_bubble_ratio=Limit(0.10, "share of the pipeline's time that may be bubble"),
)
def planned_bubble(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:
    """A pipeline has enough micro-batches to fill it, but its theoretical bubble fraction exceeds
    10 %.
    """
    costs = configuration.estimate
    if costs is None or costs.bubble_fraction <= limits["max_bubble_ratio"]:
        return
    layout = configuration.layout
    if layout.micro_batches < layout.pp:  # pipeline-hardly-filled reports it
        return
    yield Draft(
        headline=f"The pipeline idles {format_ratio(costs.bubble_fraction)} of its time (bubble)",
        message=f"It has {layout.micro_batches} micro-batches on {layout.pp} ranks.",
        cost_ns_per_step=costs.bubble_ns,
        confidence=Confidence.MODELLED,
        evidence=("configuration.estimate",),
    )


@rule(
    "CFG113",
    Severity.WARNING,
    max_exposed_ratio=Limit(
        0.20, "share of the step that exposed data-parallel communication may take"
    ),
)
def planned_data_parallelism_exposed(
    configuration: ConfigurationResult, limits: Limits
) -> Iterator[Draft]:
    """Exposed transfers of gradients and sharded parameters take more than 20 % of the estimated
    step.
    """
    costs = configuration.estimate
    if costs is None:
        return
    exposed = sum(axis.exposed_ns for axis in costs.axes if axis.axis.startswith("dp"))
    if exposed <= limits["max_exposed_ratio"] * costs.step_ns:
        return
    share = exposed / max(costs.step_ns, 1)
    yield Draft(
        headline=f"Exposed data-parallel communication takes {format_ratio(share)} of each step",
        message=says("exposed", exposed=exposed, costs=costs),
        cost_ns_per_step=exposed,
        confidence=Confidence.MODELLED,
        evidence=("configuration.estimate",),
    )


@rule(
    "CFG114",
    Severity.INFO,
    costs_time=False,
    room_ratio=Limit(0.9, "share of usable memory that the larger micro-batch may fill"),
)
def planned_accumulation_without_need(
    configuration: ConfigurationResult, limits: Limits
) -> Iterator[Draft]:
    """The job accumulates gradients over micro-batches although micro-batches of twice the size fit
    into memory.
    """
    larger, needed = configuration.larger, configuration.larger_bytes
    if larger is None or needed is None:
        return
    if needed > limits["room_ratio"] * configuration.usable_bytes:
        return
    yield Draft(
        headline=f"Gradients are accumulated, although micro-batches of {larger.micro_batch} fit",
        message=f"{format_bytes(needed)} of {format_bytes(configuration.usable_bytes)} per GPU.",
        confidence=Confidence.MODELLED,
        evidence=("configuration.larger_bytes", "configuration.usable_bytes"),
    )


@rule(
    "CFG115",
    Severity.INFO,
    costs_time=False,
    room_ratio=Limit(0.9, "share of usable memory that unsharded state may fill"),
)
def planned_sharding_without_need(
    configuration: ConfigurationResult, limits: Limits
) -> Iterator[Draft]:
    """The job shards weights although the whole model state fits into the memory of each GPU."""
    plain = configuration.plain_bytes
    if plain is None or plain > limits["room_ratio"] * configuration.usable_bytes:
        return
    yield Draft(
        headline=f"Weights are sharded, although each GPU could hold all {format_bytes(plain)}",
        message=f"{format_bytes(configuration.usable_bytes)} per GPU are usable.",
        confidence=Confidence.MODELLED,
        evidence=("configuration.plain_bytes", "configuration.usable_bytes"),
    )
