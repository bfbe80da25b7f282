"""# large-last-bucket

## What it detects
The bucket of gradients that DistributedDataParallel reduces last holds more than a quarter of all
gradients and causes most of their exposed communication.

## Why it costs time
When the last bucket is ready, backward has ended, so the whole transfer of that bucket prolongs the
step. The smaller it is, the less is exposed.

## Evidence needed
torch's marks of DDP in the trace, and the sizes of collectives. There must be several buckets, and
the last one must cause at least half of the exposed time. With matched collectives, the cost
excludes waiting for late ranks.

## How the cost is computed
The exposed transfer of last buckets, times the share that a last bucket with a quarter of all
gradients would save: mean over ranks and steps. The time of a bucket is α + β · bytes, fitted over
the buckets of this run. If they all have the same size, the rule assumes that transfer is
proportional to bytes. If α is more than half of the last bucket's time, smaller buckets save little
and each adds latency. The cost is then the time that a single bucket for all gradients would save.
The cost is modelled. The time is part of what `low-overlap` and `exposed-communication` count.

## How to fix
If latency dominates, raise `bucket_cap_mb` to get fewer buckets. Otherwise lower `bucket_cap_mb`
until there are at least 8 buckets, but not below 1 MB, where latency dominates
(`tiny-collectives`). A huge layer at the beginning of the model (an embedding) fills the last
bucket by itself: tie, shard or freeze it. Megatron-Core: `--ddp-bucket-size`.

## When it is wrong
If every bucket takes more than a millisecond whatever its size, it waits for a late rank or a
broken path, and the rule is silent (see `exposed-communication`). The first layer may make up most
of the model and be needed whole. If all buckets have the same
size, latency and transfer cannot be separated, and the fix may recover less.

## Sources
Formula sheet, "Anti-patterns" (buckets) and "Volume per training step" (DDP). PyTorch documentation
of `DistributedDataParallel` (`bucket_cap_mb`).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.costs.collectives import BucketTime
from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientGroup, GradientsResult
from distprof.sections.gradients.rules._shared import (
    exposed_label,
    exposed_once_ns,
    gradient_groups,
    is_late,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_duration, format_ratio

MOST_LATENCY = 0.5
"""Share of latency in the last bucket's time above which fewer buckets are the fix."""

MOST = 0.5
"""Share of the exposed time above which the last bucket is the cause.

Below it other buckets are exposed too: the network is always busy, and the split does not matter.
"""


@rule(
    code="COM113",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "last_bucket_ratio": Limit(0.25, "share of the gradients that the last bucket may hold"),
        "min_bytes": Limit(2_000_000, "smallest last bucket that is worth splitting, in bytes"),
        "min_step_ratio": Limit(0.01, "smallest share of the step that is worth reporting"),
    },
)
def check(
    gradients: GradientsResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    for group in gradient_groups(gradients):
        if group.is_held_up or not _is_large(
            group, limits["last_bucket_ratio"], limits["min_bytes"]
        ):
            continue
        step = mean_step(waterfall, step_time)
        exposed = group.last_bucket_ns_per_step
        if _latency_ratio(group) > MOST_LATENCY:
            cost = round(exposed_once_ns(group) * _saved_by_one_bucket(group))
        else:
            cost = round(exposed * _saved_by_splitting(group, limits["last_bucket_ratio"]))
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"The last of {group.num_buckets} buckets holds "
                f"{format_ratio(group.last_bucket_ratio)} of the gradients "
                f"({format_bytes(group.bytes)}): its {exposed_label(group)} takes "
                f"{step.share(exposed)}{_latency(group)}."
            ),
            fix=_fix(group),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            explains=WIDER_TRANSFER,
        )


def _last_bytes(group: GradientGroup) -> float:
    return group.last_bucket_ratio * group.bytes


def _time(group: GradientGroup) -> BucketTime:
    """Cost model of a bucket; proportional to bytes if the fit is unknown."""
    if group.bucket_latency_ns is None or group.bucket_ns_per_byte is None:
        return BucketTime(latency_ns=0.0, ns_per_byte=1.0)
    return BucketTime(latency_ns=group.bucket_latency_ns, ns_per_byte=group.bucket_ns_per_byte)


def _latency_ratio(group: GradientGroup) -> float:
    """Share of latency in the time of the last bucket; 0 if unknown."""
    time = _time(group)
    return time.latency_ns / max(time.of(_last_bytes(group)), 1.0)


def _saved_by_splitting(group: GradientGroup, max_ratio: float) -> float:
    """Share of the last bucket's time saved if its share of the gradients is only ``max_ratio``."""
    time = _time(group)
    return 1 - time.of(max_ratio * group.bytes) / max(time.of(_last_bytes(group)), 1.0)


def _saved_by_one_bucket(group: GradientGroup) -> float:
    """Share of the reduction's time spent on the latency of all buckets but one."""
    time = _time(group)
    whole = group.num_buckets * time.latency_ns + time.ns_per_byte * group.bytes
    return (group.num_buckets - 1) * time.latency_ns / max(whole, 1.0)


def _latency(group: GradientGroup) -> str:
    ratio = _latency_ratio(group)
    if ratio <= MOST_LATENCY:
        return ""
    latency = format_duration(round(group.bucket_latency_ns or 0))
    return f"; {format_ratio(ratio)} of its time is latency ({latency} per bucket), not transfer"


def _fix(group: GradientGroup) -> str:
    if _latency_ratio(group) > MOST_LATENCY:
        return (
            "Make the buckets larger (bucket_cap_mb). Every bucket pays the latency, so smaller "
            "buckets would add to it."
        )
    return (
        "Make the buckets smaller (bucket_cap_mb, not below 1), so that the last one is small. If "
        "the first layer is huge, keep it out of the buckets."
    )


def _is_large(group: GradientGroup, max_ratio: float, min_bytes: float) -> bool:
    """Whether the last bucket is large and causes most exposed time; False for a single bucket."""
    return (
        group.num_buckets > 1
        and group.last_bucket_ratio > max_ratio
        and group.last_bucket_ratio * group.bytes >= min_bytes
        and group.last_bucket_ns_per_step >= MOST * max(exposed_once_ns(group), 1)
        and not (group.backward_ns is not None and is_late(group))
    )
