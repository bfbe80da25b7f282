"""# loader-without-workers

## What it detects
The training thread loads its batches itself, and the step waits for them.

## Why it costs time
With `num_workers=0` a `DataLoader` reads, decodes and collates each batch only when the loop asks
for it, while the GPU has nothing to do. Workers do the same work during the step.

## Evidence needed
Traces with the ranges of the data loader (`_SingleProcessDataLoaderIter.__next__` on every load,
and no loads by workers), or a run directory with `settings.json` in which no iterated loader has
workers. The time for which the loop waits comes from the traces or from `pauses.jsonl`. If the
straggler rules already name every waiting rank for its late input, this rule is silent.

## How the cost is computed
Idle GPU time covered by the loads, mean over ranks and steps; without traces, the logged waits.
Enough workers recover nearly all of it. `input-bound` counts the same time, so this finding
replaces it.

## How to fix
Use `DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)`, then add workers
until the wait is gone. If the dataset is in memory and batches are only indexed, index whole
batches at once instead (`__getitems__`, or a `batch_sampler` with `batch_size=None`).

## When it is wrong
Loads that are slow because of the storage stay slow with workers, but run during the step. Datasets
that hold open handles (databases, CUDA tensors) need care before workers can read them.

## Sources
Formula sheet, "Anti-patterns" (input pipeline without workers). PyTorch documentation of
`torch.utils.data`; names of the ranges from `torch/utils/data/dataloader.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.input.rules._shared import named_for_late_input, waiting_for_input
from distprof.sections.settings.result import SettingsResult
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity

_OTHERS = "persistent_workers=True and pin_memory=True"
_OTHERS_OF_CPU = "persistent_workers=True"


@rule(
    code="INP103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "wait_ratio": Limit(0.05, "share of the step that the loop may wait for data"),
        "error_ratio": Limit(0.2, "share of the step from which the finding is an error"),
    },
)
def check(
    settings: SettingsResult,
    idle: IdleResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    pauses: PausesResult,
    step_log: StepLogResult,
    stragglers: StragglersResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if not _loads_itself(settings):
        return
    min_ratio = limits["wait_ratio"]
    waiting = waiting_for_input(idle, waterfall, step_time, pauses, step_log, min_ratio)
    is_named = waiting.ranks and set(waiting.ranks) <= named_for_late_input(stragglers)
    if waiting.ratio < min_ratio or is_named:
        return
    others = _OTHERS_OF_CPU if idle.is_cpu else _OTHERS
    yield Draft(
        message=(
            f"For {waiting.share} {idle.nothing_runs} while the training thread loads its batch "
            "itself: the data loader has no workers."
        ),
        fix=(
            f"Set num_workers=4 or more and {others}. If batches are only indexed in memory, index "
            "whole batches at once."
        ),
        cost_ns_per_step=waiting.ns,
        ranks=waiting.ranks,
        evidence=("settings.feed", "settings.loaders", "idle.ranks"),
        without="input",
        severity=Severity.ERROR if waiting.ratio >= limits["error_ratio"] else None,
        explains=("INP101",),
    )


def _loads_itself(settings: SettingsResult) -> bool:
    """Whether no batch came from a worker, according to the traces or, failing that, loaders."""
    if any(rank.num_own_loads or rank.num_worker_loads for rank in settings.feed):
        return not any(rank.num_worker_loads for rank in settings.feed)
    return bool(settings.loaders) and not any(one.num_workers for one in settings.loaders)
