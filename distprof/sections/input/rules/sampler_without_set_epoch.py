"""# sampler-without-set-epoch

## What it detects
A `DistributedSampler` that shuffles draws the same order in every epoch.

## Why it costs time
It costs model quality, not time. The sampler shuffles with a seed that only `set_epoch()` changes.
Without that call every rank sees the same samples in the same batches in every epoch, and the
batches of different ranks never mix.

## Evidence needed
A run directory with `settings.json`, and at least two epochs of a loader with a
`DistributedSampler` that shuffles. Iterations that begin in the same step count as one epoch.

## How the cost is computed
No cost: the job loses no time.

## How to fix
Call `loader.sampler.set_epoch(epoch)` at the beginning of each epoch, before you iterate over the
loader.

## When it is wrong
A loader that shuffles but serves only evaluation may repeat its order.

## Sources
Formula sheet, "Anti-patterns" (sampler without `set_epoch`). PyTorch documentation of
`DistributedSampler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.settings.result import SettingsResult
from distprof.terms import Severity
from distprof.units import name_ranks


@rule(
    code="INP105",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_epochs": Limit(2.0, "epochs that must have begun")},
    costs_time=False,
)
def check(settings: SettingsResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per kind of loader."""
    for one in settings.loaders:
        if not one.shuffle or one.num_orders != 1 or one.num_epochs < limits["min_epochs"]:
            continue
        yield Draft(
            message=(
                f"The {one.sampler} of {name_ranks(one.ranks)} drew the same order in each of "
                f"{one.num_epochs:,} epochs: set_epoch() was never called with a new epoch."
            ),
            fix=(
                "Call loader.sampler.set_epoch(epoch) at the beginning of each epoch, before you "
                "iterate over the loader."
            ),
            ranks=one.ranks,
            evidence=("settings.loaders",),
        )
