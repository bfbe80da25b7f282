"""# input-bound-by-log

## What it detects
According to the training program's own timer, the training loop waits for its next batch.

## Why it costs time
While the loop waits for a batch, it launches nothing, and the GPUs run dry.

## Evidence needed
A log of the training program (`distprof analyze train.log`, or `--with train.log`) that prints the
time for data next to the time of an iteration: `data_time` of MMEngine and Detectron2, `Data` of
timm, torchvision, OpenCLIP and PyTorch's examples, `batch-generator` of Megatron-LM, Lightning's
`train_dataloader_next`, or a timer with such a name of any other program.

## How the cost is computed
The mean of that timer per iteration. These programs count it as part of the iteration.

## How to fix
Give the data loader more workers and a deeper prefetch, keep workers alive between epochs, pin
memory and copy without blocking. If the wait remains, look at decoding and at the storage.

## When it is wrong
While the loop waits for data, the GPU may still compute what was launched before. A GPU that is
busy for the whole iteration loses nothing. A trace shows whether it idles. Logs without a loss are
not judged: a program that reads no loss need not wait for its GPU.

## Sources
Formula sheet, "Measured from traces" (input wait).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.training_log.result import TrainingLogResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="INP109",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"input_ratio": Limit(0.1, "share of an iteration that waiting for input may take")},
)
def check(log: TrainingLogResult, stragglers: StragglersResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the program's timer, unless traces show the same wait."""
    timer = log.input_timer
    if timer is None or timer.ratio is None or timer.ratio < limits["input_ratio"]:
        return
    if stragglers.ranks:
        return
    yield Draft(
        message=(
            f"The training loop waits for input for {format_ratio(timer.ratio)} of each iteration "
            f"({format_duration(timer.mean_ns)} of {format_duration(log.mean_ns)}), according to "
            f"the program's timer {timer.name!r}."
        ),
        fix=(
            "Raise num_workers and prefetch_factor, set pin_memory and persistent_workers, and "
            "copy with non_blocking=True. Then look at decoding and storage."
        ),
        cost_ns_per_step=timer.mean_ns,
        confidence=Confidence.INFERRED,
        evidence=("training_log.timers",),
    )
