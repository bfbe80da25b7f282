"""# memory-copy-bound

## What it detects
Copies between CPU and GPU, or within the GPU, run while the GPU does nothing else.

## Why it costs time
Copy engines work concurrently with kernels. A copy on the compute stream, or from pageable memory,
blocks that stream until it is done.

## Evidence needed
GPU activities of at least one rank.

## How the cost is computed
Time covered by copies and memory sets but not by computation or communication: mean over ranks and
steps. No other finding includes it.

## How to fix
The message splits the copies by direction and names the operators that launch them. From or to
pageable CPU memory: pin it (`pin_memory=True` in the data loader) and copy with
`non_blocking=True`. If it is already pinned: copy on a separate stream, one batch ahead. Offloading
(optimizer, activations): prefetch and use fewer, larger copies, or offload less. Pinning does not
affect copies within the GPU: avoid `.contiguous()`, `torch.cat` and `.clone()` in the hot path.

## When it is wrong
Offloading that makes the model fit is worth its copies. A checkpoint in the recorded steps copies
once, not in every step.

## Sources
Formula sheet, "Measured from traces" (exposed copies). PyTorch documentation, CUDA semantics
(pinned memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.shares import mean_step
from distprof.sections.time.result import ExposedCopies, StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_duration

WORTH_RATIO = 0.1
"""Share of all exposed copies from which a kind of copies is named."""

MAX_NAMED = 3


@rule(
    code="MEM101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "exposed_copy_ratio": Limit(0.05, "largest acceptable share of exposed copies in the step")
    },
)
def check(waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    cost = step.mean(step.total.exposed_copy_ns)
    limit = limits["exposed_copy_ratio"]
    if step.ratio(cost) < limit:
        return
    yield Draft(
        message=(
            f"Exposed copies take {step.share(cost)}: they overlap with neither computation nor "
            f"communication{_split(waterfall)}."
        ),
        fix=_fix(waterfall),
        cost_ns_per_step=cost,
        ranks=tuple(
            rank.rank
            for rank in waterfall.ranks
            if rank.exposed_copy_ns >= limit * rank.span_ns > 0
        ),
        evidence=("breakdown.ranks", "waterfall.all", "waterfall.copies"),
        without="copies",
    )


def _worst(waterfall: WaterfallResult) -> list[ExposedCopies]:
    """Kinds of copies that make up most of the exposed time, at least one."""
    total = sum(row.exposed_ns_per_step for row in waterfall.copies)
    worth = [row for row in waterfall.copies if row.exposed_ns_per_step >= WORTH_RATIO * total > 0]
    return worth[:MAX_NAMED]


def _split(waterfall: WaterfallResult) -> str:
    """For example ``: 3 ms GPU to GPU, 1 ms CPU (pinned) to GPU``."""
    parts = [
        f"{format_duration(row.exposed_ns_per_step)} in {row.num_per_step:.3g} {_kind(row)}"
        f"{_by(row.operators)}"
        for row in _worst(waterfall)
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _by(operators: Sequence[str]) -> str:
    """For example `` by aten::cat and aten::contiguous``."""
    if len(operators) < 2:
        return "".join(f" by {name}" for name in operators)
    return f" by {', '.join(operators[:-1])} and {operators[-1]}"


def _kind(row: ExposedCopies) -> str:
    memory = f"{row.host_memory} " if row.host_memory else ""
    words = {
        "HtoD": f"copies from {memory}CPU memory",
        "DtoH": f"copies to {memory}CPU memory",
        "DtoD": "copies within the GPU",
        "PtoP": "copies between GPUs",
        "memset": "memory sets",
    }
    return words.get(row.direction, "other copies")


def _fix(waterfall: WaterfallResult) -> str:
    """The fix by direction, because pinning helps only with pageable CPU memory."""
    worst = _worst(waterfall)
    ways = {(row.direction, row.host_memory) for row in worst}
    steps = []
    if any(memory == "pageable" for _, memory in ways):
        steps.append("Pin CPU memory (pin_memory=True) and copy with non_blocking=True.")
    elif not worst or any(not memory and way in ("HtoD", "DtoH") for way, memory in ways):
        steps.append("Pin CPU memory if it is not pinned yet, and copy with non_blocking=True.")
    if any(memory == "pinned" for _, memory in ways):
        steps.append(
            "The CPU memory is already pinned: copy on a separate stream, one batch or layer "
            "ahead, and offload less or in larger pieces."
        )
    if any(way == "DtoD" for way, _ in ways):
        steps.append(
            "Within the GPU, avoid contiguous(), torch.cat, clone() and copies of gradients "
            "(DDP: gradient_as_bucket_view=True)."
        )
    if any(way == "PtoP" for way, _ in ways):
        steps.append("Between GPUs, send while computing, on a separate stream.")
    if any(way == "memset" for way, _ in ways):
        steps.append("Set memory less often: zero_grad(set_to_none=True), torch.empty.")
    return " ".join(steps) or "Copy on a separate stream, one batch ahead."
