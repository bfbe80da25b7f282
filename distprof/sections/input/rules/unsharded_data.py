"""# unsharded-data

## What it detects
All ranks of a data-parallel job train on the same batches.

## Why it costs time
Replicas exist to process more data. On the same batch all of them compute the same gradient, so the
average equals that of one rank. The job learns only as fast as a single rank but pays for all of
them.

## Evidence needed
A run directory with `settings.json` of every rank. The first batch of the loader is the same on all
of them (a checksum of the start of its tensors), its sampler does not divide the data, and
`DistributedDataParallel` or FSDP spans all ranks. The rule is silent if a tensor, pipeline, context
or expert axis is known, or if ranks exchange messages: these ranks have to read the same data.

## How the cost is computed
No cost: no step would be shorter. The job wastes the work of all ranks but one.

## How to fix
Give the loader `sampler=DistributedSampler(dataset)` and call `set_epoch()` in each epoch, or
divide an iterable dataset by rank and worker (`split_dataset_by_node`, `islice`).

## When it is wrong
Benchmarks may feed one synthetic batch to all ranks on purpose. The data of the ranks may differ
only after the first 16 KiB of every tensor.

## Sources
Formula sheet, "Anti-patterns" (sampler). PyTorch documentation of `DistributedSampler` and of
`DistributedDataParallel`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.settings.result import SettingsResult
from distprof.sections.stragglers.result import MessagesResult
from distprof.terms import MeshAxis, Severity
from distprof.units import capitalized, name_ranks

_SAME_DATA = frozenset((MeshAxis.TP, MeshAxis.PP, MeshAxis.CP, MeshAxis.EP))
"""Axes whose ranks share the work on the same samples."""


@rule(
    code="INP106",
    severity=Severity.ERROR,
    since="0.1.0",
    costs_time=False,
)
def check(
    settings: SettingsResult,
    collectives: CollectivesResult,
    messages: MessagesResult,
    limits: Limits,  # noqa: ARG001
) -> Iterator[Draft]:
    """Yield one finding per kind of loader."""
    axes = {record.axis for record in collectives.classes}
    if not _is_data_parallel(settings) or axes & _SAME_DATA or messages.ranks:
        return
    for one in settings.loaders:
        if one.num_first_batches != 1 or len(one.ranks) != settings.num_ranks:
            continue
        if not (one.is_plain or one.is_iterable):
            continue
        how = "an IterableDataset" if one.is_iterable else f"{one.sampler} over all of it"
        yield Draft(
            message=(
                f"{capitalized(name_ranks(one.ranks))} begin with the same batch of {one.dataset} "
                f"({how}): replicas that read the same data learn no faster than a single one."
            ),
            fix=(
                "Give the loader sampler=DistributedSampler(dataset) and call set_epoch() in each "
                "epoch, or divide an iterable dataset by rank and worker."
            ),
            ranks=one.ranks,
            evidence=("settings.loaders", "settings.ddp", "settings.fsdp"),
        )


def _is_data_parallel(settings: SettingsResult) -> bool:
    """Whether each rank holds a replica, or a shard of one, of the same model as all others."""
    wrapped = [(one.group_size, one.ranks) for one in settings.ddp]
    wrapped += [(one.group_size, one.ranks) for one in settings.fsdp]
    num_ranks = settings.num_ranks
    return num_ranks > 1 and any(size == num_ranks == len(ranks) for size, ranks in wrapped)
