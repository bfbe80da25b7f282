"""Rules about sweep."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.costs.transformer import critical_batch
from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio
from distprof.verbs.sweep import CAUSES, ScalingResult, ScalingSize, says


def larger_sizes(scaling: ScalingResult) -> list[ScalingSize]:
    """Sizes larger than the baseline, ascending; InsufficientEvidenceError if there are none."""
    base = scaling.baseline_ranks
    sizes = [size for size in scaling.sizes if base is not None and size.num_ranks > base]
    if not sizes:
        why = "; ".join(scaling.unavailable)
        raise InsufficientEvidenceError(
            "no size larger than the baseline" + (f": {why}" if why else "")
        )
    return sizes


def lowest(size: ScalingSize) -> float:
    """Lower end of the interval of the efficiency, or the efficiency if there is no interval."""
    return size.efficiency if size.efficiency_low is None else size.efficiency_low


def highest(size: ScalingSize) -> float:
    """Upper end of the interval of the efficiency, or the efficiency if there is no interval."""
    return size.efficiency if size.efficiency_high is None else size.efficiency_high


def _interval(size: ScalingSize) -> str:
    """The efficiency's interval, for example `` (95 % interval 70.1 % to 73.9 %)``."""
    if size.efficiency_low is None or size.efficiency_high is None:
        return ""
    ends = f"{format_ratio(size.efficiency_low)} to {format_ratio(size.efficiency_high)}"
    return f" (95 % interval {ends})"


@rule("SCA102", Severity.WARNING, target_ratio=Limit(0.8, "required efficiency over the baseline"))
def efficiency_below_target(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Each rank does less work per time as ranks are added, and the efficiency falls below the
    target, with its whole 95 % interval.
    """
    target = limits["target_ratio"]
    below = [size for size in larger_sizes(scaling) if highest(size) < target]
    if not below:
        return
    worst = below[-1]
    found = {"scaling": scaling, "worst": worst, "interval": _interval(worst), "target": target}
    message = says("below target", mode=str(scaling.mode).capitalize(), **found)
    if len(below) > 1:
        message += f" It falls below the target at {below[0].num_ranks} ranks."
    yield Draft(
        headline=f"Scaling is {format_ratio(worst.efficiency)} efficient, below the target",
        message=message,
        fix=advice("efficiency-below-target", num_ranks=below[0].num_ranks),
        cost_ns_per_step=max(worst.lost_ns, 1),
        evidence=("scaling.sizes",),
    )


@rule(
    "SCA103",
    Severity.WARNING,
    lost_ratio=Limit(0.1, "minimum share of the step that is lost"),
    dominant_ratio=Limit(0.5, "minimum share of the loss for the dominant cause"),
)
def scaling_loss_dominated(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """One cause accounts for most of the efficiency lost between the smallest and the largest
    size.
    """
    largest = larger_sizes(scaling)[-1]
    if not largest.losses:
        raise InsufficientEvidenceError(
            f"no traced parts for {scaling.baseline_ranks} and {largest.num_ranks} ranks"
        )
    worst = max(largest.losses, key=lambda loss: loss.lost_ns)
    lost = largest.lost_ns / largest.step_ns
    if 1 - highest(largest) < limits["lost_ratio"]:
        return
    if worst.lost_ns < limits["dominant_ratio"] * largest.lost_ns:
        return
    of_loss = format_ratio(worst.lost_ns / largest.lost_ns)
    alone = f"{worst.cause} alone accounts for {of_loss} of that"
    if worst.lost_ns > largest.lost_ns:
        alone = f"{worst.cause} takes more than that, while other parts shrank"
    yield Draft(
        headline=fitting(
            f"Scaling loses {format_ratio(lost)} of the step, most to {worst.cause}",
            f"Scaling loses {format_ratio(lost)} of the step",
        ),
        message=says("dominated", scaling=scaling, size=largest, alone=alone, worst=worst),
        fix=advice(
            "scaling-loss-dominated",
            next(field for field, cause in CAUSES.items() if cause == worst.cause),
        ),
        cost_ns_per_step=worst.lost_ns,
        confidence=Confidence.INFERRED,
        evidence=("scaling.sizes",),
    )


@rule(
    "SCA104",
    Severity.WARNING,
    position_ratio=Limit(
        0.8, "computation over transfer time below which transfers limit the step"
    ),
    exposed_ratio=Limit(0.1, "minimum exposed transfer, as a share of the step"),
)
def small_batch_at_scale(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """In data-parallel training, each rank's batch is so small that a step transfers gradients for
    longer than it computes, and part of the transfer is exposed.
    """
    size = larger_sizes(scaling)[-1]
    if size.exposed_transfer_ns is None or size.computation_ns is None:
        raise InsufficientEvidenceError(f"no traced parts for {size.num_ranks} ranks")
    if size.is_data_parallel is None:
        raise InsufficientEvidenceError(f"the mesh of the run on {size.num_ranks} ranks is unknown")
    if not size.is_data_parallel or size.transfer_ns is None or size.computation_ns <= 0:
        return
    position = size.computation_ns / size.transfer_ns
    if position >= limits["position_ratio"]:
        return
    if size.exposed_transfer_ns < limits["exposed_ratio"] * size.step_ns:
        return
    yield Draft(
        headline=f"On {size.num_ranks:,} ranks, transfers take longer than computation",
        message=says("small batch", size=size, batch=_batch(size, scaling)),
        cost_ns_per_step=size.exposed_transfer_ns,
        confidence=Confidence.INFERRED,
        evidence=("scaling.sizes",),
    )


def _batch(size: ScalingSize, scaling: ScalingResult) -> str:
    """The batch compared with the critical batch; without units if the work is unknown."""
    assert size.computation_ns is not None
    assert size.transfer_ns is not None
    batch = (size.work_per_step or size.num_ranks) / size.num_ranks
    critical = critical_batch(batch, size.computation_ns, size.transfer_ns)
    if size.work_per_step is None:
        return f"the critical batch is {critical / batch:.3g} times that of a rank"
    return f"{batch:,.0f} {scaling.unit} per rank are below the critical batch of {critical:,.0f}"


@rule(
    "SCA105",
    Severity.INFO,
    costs_time=False,
    above_ratio=Limit(0.02, "efficiency above 1 that counts as measurement error"),
)
def superlinear_scaling(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Each rank does more work per time than in the baseline, by more than repeats differ."""
    beyond = [size for size in larger_sizes(scaling) if lowest(size) > 1 + limits["above_ratio"]]
    if not beyond:
        return
    best = max(beyond, key=lambda size: size.efficiency)
    base = scaling.baseline_ranks
    ranks = f"{base} rank{'' if base == 1 else 's'}"
    ends = f"{_interval(best)}{_computation(best)}"
    yield Draft(
        headline=f"Scaling is {format_ratio(best.efficiency)} efficient, more than linear",
        message=f"On {best.num_ranks} ranks, compared with {ranks}{ends}.",
        fix=advice("superlinear-scaling", ranks=ranks),
        evidence=("scaling.sizes",),
    )


def _computation(size: ScalingSize) -> str:
    """How much shorter the computation of the same work is; empty if traces do not show it."""
    grew = next((x.lost_ns for x in size.losses if x.cause == CAUSES["computation_ns"]), None)
    if grew is None or grew >= 0 or size.computation_ns is None:
        return ""
    less = format_ratio(-grew / (size.computation_ns - grew))
    return f"; computation of the same work is {less} shorter"
