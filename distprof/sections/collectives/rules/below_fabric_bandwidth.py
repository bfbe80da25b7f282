"""# below-fabric-bandwidth

## What it detects
Large collectives move their data at a fraction of the bus bandwidth that these machines reach with
the same kind, size and group, according to a fabric profile.

## Why it costs time
The network could move the same bytes in less time, but something in this job prevents it.

## Evidence needed
- A fabric profile (`distprof bench`, or the output of nccl-tests), given with `--fabric` or in
  `distprof.toml`, that covers the kind, the group and the size. Without one the rule is silent.
- Collectives matched across ranks on comparable clocks, most of them with all their members in the
  recording.

## How the cost is computed
The exposed transfer of each slow class, times the share of it that the expected bandwidth would
save; a mean over ranks and steps. Transfer that overlaps with computation costs nothing.

## How to fix
Run `distprof bench` again on exactly the nodes of the job. If it is slow too, the machines are at
fault: look for a link that is down, sockets instead of InfiniBand (`NCCL_DEBUG=INFO`), or a
throttling GPU. If it is fast, look for collectives of several groups that share a link at the same
time, for computation that takes the multiprocessors NCCL needs, for NCCL settings that differ from
those of the benchmark (`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_NET`), and for a different rank order.

## When it is wrong
A profile is measured on idle machines. In a job, computation runs at the same time as
communication and slows both by 10 to 20 %; the limit leaves room for that. A profile of other
machines says nothing.

## Sources
Formula sheet, "Collectives". nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.collectives.rules._shared import collective_label
from distprof.sections.shares import has_all_members, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_bandwidth


@rule(
    code="COM107",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "busbw_ratio": Limit(0.7, "share of the expected bus bandwidth that is enough"),
        "min_bytes": Limit(1_000_000, "size in bytes of the smallest collective to judge"),
        "min_step_ratio": Limit(0.01, "share of the step that the excess transfer may take"),
    },
)
def check(
    collectives: CollectivesResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    capture: CaptureResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run that names the class that loses most."""
    covered = [record for record in collectives.classes if record.expected_busbw_bytes_per_s]
    if not covered:  # no profile, or it covers no class: the result says which
        return
    step = mean_step(waterfall, step_time)
    if not has_all_members(capture):
        raise InsufficientEvidenceError("most collectives lack a member in the recording")
    slow = [record for record in covered if _is_slow(record, limits)]
    cost = sum(_saved_ns(record) for record in slow)
    if not slow or step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(slow, key=_saved_ns)
    yield Draft(
        message=(
            f"{step.share(cost)} is excess transfer time: "
            f"{collective_label(worst)} moves at {format_bandwidth(worst.busbw_bytes_per_s)} bus "
            "bandwidth, but the fabric profile reaches "
            f"{format_bandwidth(worst.expected_busbw_bytes_per_s)}."
        ),
        fix=(
            "Run distprof bench on exactly the nodes of the job. If it is slow too, look for a "
            "broken link, sockets or a throttling GPU. If it is fast, look for groups that share a "
            "link at the same time, different NCCL settings and a different rank order."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "waterfall.all"),
    )


def _is_slow(record: CollectiveClass, limits: Limits) -> bool:
    return (
        record.busbw_bytes_per_s is not None
        and record.expected_busbw_bytes_per_s is not None
        and (record.bytes or 0) >= limits["min_bytes"]
        and record.busbw_bytes_per_s < limits["busbw_ratio"] * record.expected_busbw_bytes_per_s
    )


def _saved_ns(record: CollectiveClass) -> int:
    """Exposed transfer that the expected bandwidth would save, mean per step."""
    reached = (record.busbw_bytes_per_s or 0.0) / (record.expected_busbw_bytes_per_s or 1.0)
    return max(round(record.exposed_transfer_ns_per_step * (1 - reached)), 0)
