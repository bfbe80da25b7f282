"""# needless-unused-parameter-search

## What it detects
DDP searches for unused parameters in each step and never finds any.

## Why it costs time
With `find_unused_parameters=True` DDP walks the whole autograd graph after each forward, and the
ranks exchange a bitmap of the parameters that they used. The CPU does nothing else during this
time.

## Evidence needed
A run directory with `settings.json`: the parameters that torch's logger recorded as unused in the
first ten iterations and every hundredth one after them, on every rank.

## How the cost is computed
Exposed time of DDP's search and of the bitmap's all-reduce in the traces, mean over ranks and
steps. None if the traces do not show it. `unused-parameter-search` counts the same time without
knowing whether the search is needed, so this finding replaces it.

## How to fix
Leave `find_unused_parameters` at False. If iterations always leave the same parameters unused, set
`static_graph=True`, which searches only once.

## When it is wrong
Some parameters may be unused only in rare iterations. Without the search, DDP stops with an error
in the first such iteration.

## Sources
Formula sheet, "Anti-patterns" (`find_unused_parameters` without need). PyTorch documentation of
`DistributedDataParallel`; `unused_parameter_size` in `torch/csrc/distributed/c10d/logger.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.settings.result import DdpSetup, SettingsResult
from distprof.sections.time.result import StepTimeResult
from distprof.terms import Severity
from distprof.units import format_duration


@rule(
    code="COM123",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "min_looks": Limit(3.0, "iterations that must have been inspected on each rank"),
        "warning_ratio": Limit(0.01, "share of the step from which the finding is a warning"),
    },
)
def check(
    settings: SettingsResult,
    gradients: GradientsResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    searching = [one for one in settings.ddp if one.find_unused_parameters and not one.static_graph]
    if not searching or any(_may_be_needed(one, limits["min_looks"]) for one in searching):
        return
    cost = gradients.search_exposed_ns_per_step or None
    step_ns = step_time.median_ns or 0
    is_costly = cost is not None and cost >= limits["warning_ratio"] * step_ns > 0
    costs = f", which costs {format_duration(cost)}" if cost else ""
    num_looks = min(one.num_looks for one in searching)
    yield Draft(
        message=(
            f"DDP searches for unused parameters in each step{costs}, but found none in the "
            f"{num_looks:,} iterations inspected on each rank."
        ),
        fix=(
            "Leave find_unused_parameters at False. If the same parameters always stay unused, set "
            "static_graph=True."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(sorted({rank for one in searching for rank in one.ranks})),
        evidence=("settings.ddp", "gradients.search_exposed_ns_per_step"),
        severity=Severity.WARNING if is_costly else None,
        explains=("COM115",),
    )


def _may_be_needed(one: DdpSetup, min_looks: float) -> bool:
    return one.max_unused_bytes != 0 or one.num_looks < min_looks
