"""Rules about sweep."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.costs.transformer import critical_batch
from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio
from distprof.verbs.sweep import CAUSES, ScalingResult, ScalingSize


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

    ## Why it costs time
    At an efficiency of 70 %, three of ten GPUs are wasted. The loss grows with every added rank, so
    a job for many GPUs should reach the target on a few GPUs first.

    ## Evidence needed
    Runs of at least two sizes. Repeats of each size determine the uncertainty of the efficiency.
    Without repeats, the interval comes from the steps of one run.

    ## How the cost is computed
    The step at the largest size below the target, minus the time of the same work at the efficiency
    of the baseline.

    ## How to fix
    Start with the losses by cause, and with the findings of `distprof analyze` on the largest run.
    Strong scaling always has a limit. At the limit, use fewer ranks, or increase the batch with
    them.

    ## When it is wrong
    If the baseline is a single rank, which has no communication. If one rank cannot train the model
    anyway, a baseline of one node is fairer.

    ## Sources
    Formula sheet, "Scaling".
    """
    target = limits["target_ratio"]
    below = [
        size
        for size in larger_sizes(scaling)
        if (size.efficiency if size.efficiency_high is None else size.efficiency_high) < target
    ]
    if not below:
        return
    worst = below[-1]
    since = f" It falls below the target at {below[0].num_ranks} ranks." if len(below) > 1 else ""
    yield Draft(
        headline=f"Scaling is {format_ratio(worst.efficiency)} efficient, below the target",
        message=(
            f"{str(scaling.mode).capitalize()} scaling from {scaling.baseline_ranks} to"
            f" {worst.num_ranks} ranks{_interval(worst)}; the target is"
            f" {format_ratio(target)}.{since}"
        ),
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
    """One cause accounts for most of the efficiency lost between the smallest and the largest size.

    ## Why it costs time
    Efficiency drops when parts of a step grow while computation stays the same: exposed transfers,
    waits for the slowest rank, bubbles, CPU time, input. If one of them is most of the loss, work
    on it first.

    ## Evidence needed
    Traces of the baseline and of the largest size, in addition to steps without a profiler.

    ## How the cost is computed
    Each part of the traced step, scaled to the step without a profiler, minus the same part of the
    baseline for the same work. These differences add up to the lost time exactly. The cost is the
    difference of the named cause. The scaling assumes that the profiler slows all parts equally.

    ## How to fix
    - Exposed transfer: overlap it with compute, send fewer bytes, use faster links, shard inside a
      node.
    - Imbalance: find the straggler.
    - Bubble: use more micro-batches.
    - CPU: launch fewer, larger kernels, or compile.
    - Input: use more workers.
    - Computation that grew: look for work that every rank repeats, and for smaller kernels.

    ## When it is wrong
    If the trace cannot separate waiting from transfer: then the two count as one cause. If the
    profiler slows launches: then the CPU's part is too large.

    ## Sources
    Formula sheet, "Scaling" and "Measured from traces".
    """
    largest = larger_sizes(scaling)[-1]
    if not largest.losses:
        raise InsufficientEvidenceError(
            f"no traced parts for {scaling.baseline_ranks} and {largest.num_ranks} ranks"
        )
    worst = max(largest.losses, key=lambda loss: loss.lost_ns)
    lost = largest.lost_ns / largest.step_ns
    surely_lost = 1 - (
        largest.efficiency if largest.efficiency_high is None else largest.efficiency_high
    )
    if surely_lost < limits["lost_ratio"]:
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
        message=(
            f"From {scaling.baseline_ranks} to {largest.num_ranks} ranks,"
            f" {format_duration(largest.lost_ns)} of {format_duration(largest.step_ns)} are lost,"
            f" and {alone} ({format_duration(worst.lost_ns)})."
        ),
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

    ## Why it costs time
    A step sends each gradient once, whatever the number of tokens. The transfer therefore stays the
    same while computation shrinks with the batch per rank. Below the critical batch, not even
    perfect overlap can hide the transfer.

    ## Evidence needed
    A trace of the largest size with both exposed and overlapped communication, and the mesh. The
    mesh must have data-parallel axes only, as the traffic of other axes grows with the batch.

    ## How the cost is computed
    The exposed transfers of one step. At the critical batch, all of them could overlap with
    computation. The critical batch is the batch per rank times transfer time over computation time.

    ## How to fix
    Give each rank more work per step: a larger batch, or micro-batches that accumulate gradients
    without a reduction each time. Alternatively, use fewer ranks, gradients of half the size, or a
    faster network.

    ## When it is wrong
    If weights are sharded: they are gathered for every micro-batch, so accumulation does not save
    all of the traffic. If collectives are small and latency-bound: fewer and larger buckets help
    more. A larger batch may need different hyperparameters.

    ## Sources
    Formula sheet, "Computation and communication" (regimes, critical batch).
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
        message=(
            f"A step computes for"
            f" {format_duration(size.computation_ns)} and transfers for"
            f" {format_duration(size.transfer_ns)}, of which"
            f" {format_duration(size.exposed_transfer_ns)} are exposed: {_batch(size, scaling)}."
        ),
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
    """Each rank does more work per time than in the baseline, by more than repeats differ.

    ## Why it costs time
    It costs no time, but every efficiency over this baseline is too high: the slow baseline hides
    losses at larger sizes. A gate on efficiency then misses regressions, and an extrapolation is
    too optimistic.

    ## Evidence needed
    Runs of at least two sizes, with the interval of their efficiency from repeats or steps.

    ## How the cost is computed
    No cost is computed: the sweep loses no time, but its efficiencies are not meaningful.

    ## How to fix
    Analyse the baseline alone first. It may be short of memory and recompute, page or allocate
    again. Its share of the data may not fit into caches. It may have run next to other programs, or
    on different hardware. Choose a larger baseline, and repeat it alternately with the other sizes.

    ## When it is wrong
    In strong scaling, each rank's share shrinks and may fit into a cache at some size. Then the
    gain is real, but it does not continue with more ranks.

    ## Sources
    Gunther, Puglia and Tomasette, "Hadoop Superlinear Scalability" (2015).
    """
    beyond = [size for size in larger_sizes(scaling) if lowest(size) > 1 + limits["above_ratio"]]
    if not beyond:
        return
    best = max(beyond, key=lambda size: size.efficiency)
    base = scaling.baseline_ranks
    ranks = f"{base} rank{'' if base == 1 else 's'}"
    yield Draft(
        headline=f"Scaling is {format_ratio(best.efficiency)} efficient, more than linear",
        message=(
            f"On {best.num_ranks} ranks, compared with {ranks}{_interval(best)}"
            f"{_computation(best)}."
        ),
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
