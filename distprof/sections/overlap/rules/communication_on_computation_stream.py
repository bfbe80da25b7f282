"""# communication-on-computation-stream

## What it detects
Data-parallel collectives (gradients, sharded parameters) run on the GPU's compute stream.

## Why it costs time
Operations on one stream run one after another. A collective on the compute stream cannot overlap
with computation, whatever the program intends, so it adds its full length to the step.

## Evidence needed
GPU activities with their streams, and groups whose axis is data parallel (`dp`, `dp_replicate`,
`dp_shard`) or that gather parameters unit by unit.

## How the cost is computed
The smaller of two means per rank and step: exposed transfer of these collectives, and computation
that runs without concurrent communication. This is an upper bound. If waiting for late members is
unknown, all exposed time counts as transfer.

## How to fix
Launch them asynchronously (`async_op=True`, and wait before the result is used): synchronous
collectives run on the current stream since PyTorch 2.8. Or let the wrapper do it: DDP,
`fully_shard`, and Megatron's `--overlap-grad-reduce` and `--overlap-param-gather` use separate
streams. In custom code, use `with torch.cuda.stream(side):` and events in both directions.

## When it is wrong
There may be nothing left to compute at that point, as for the norm of all gradients. Such
collectives are small.

## Sources
Formula sheet, "Measured from traces" (overlap). PyTorch documentation of `torch.distributed`
(synchronous and asynchronous collectives).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.sharding.result import ShardingResult
from distprof.sections.shares import WIDER_TRANSFER, alone_ns, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


@rule(
    code="COM121",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.03, "smallest share of the step that is worth reporting")},
)
def check(
    sharding: ShardingResult,
    overlap: OverlapResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for each axis."""
    if not sharding.shared_streams:
        return
    step = mean_step(waterfall, step_time)
    alone = alone_ns(step, overlap)
    for one in sharding.shared_streams:
        cost = min(one.exposed_ns_per_step - (one.wait_ns_per_step or 0), alone)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        is_split = one.wait_ns_per_step is not None
        yield Draft(
            message=(
                f"{one.per_step:.0f} collectives of {one.axis} per {step.word} "
                f"({format_ratio(one.share_ratio)} of them) run on a compute stream: "
                f"{step.share(cost)} is transfer that cannot overlap with computation there."
            ),
            fix=(
                "Launch them with async_op=True and wait where the result is used, or run them on "
                "a separate stream, as DDP, fully_shard and Megatron's overlap options do."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MEASURED if is_split else Confidence.INFERRED,
            evidence=("sharding.shared_streams", "overlap.ranks"),
            without="overlap",
            explains=WIDER_TRANSFER,
        )
