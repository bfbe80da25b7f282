"""# sampler-without-set-epoch

## What it detects
A shuffling `DistributedSampler` draws the same order in every epoch.

## Why it costs time
It costs quality of the model, not time: the sampler shuffles with a seed that changes only with
`set_epoch()`. Without it every rank sees the same samples in the same batches in every epoch, and
batches of different ranks never mix.

## Evidence needed
A run directory with `settings.json`, and two epochs or more of a loader with a `DistributedSampler`
that shuffles. Iterations that begin in the same step count as one epoch.

## How the cost is computed
There is none: no time is lost.

## How to fix
Call `loader.sampler.set_epoch(epoch)` at the beginning of each epoch, before the loader is
iterated.

## When it is wrong
A loader that is made to shuffle but read for evaluation only may repeat its order.

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
    needs=(SettingsResult,),
    limits={"min_epochs": Limit(2.0, "epochs that have to have begun")},
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
                f"{one.num_epochs:,} epochs: set_epoch() was never called with another number."
            ),
            fix=(
                "Call loader.sampler.set_epoch(epoch) at the beginning of each epoch, before the "
                "loader is iterated."
            ),
            ranks=one.ranks,
            evidence=("settings.loaders",),
        )
