"""Rules about the data itself."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.input.rules.loading import named_for_late_input
from distprof.sections.settings import SettingsResult
from distprof.sections.shares import StepTimes, hidden_waits, idle_gpu_ns, medians_of_others
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import MessagesResult, StragglersResult
from distprof.sections.time import WaterfallResult
from distprof.sections.whatif import PAGEABLE
from distprof.terms import MeshAxis, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks


@rule(
    "INP102",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that a rank may wait longer than its peers"),
    queue_ratio=Limit(
        0.25, "share of the training thread's wait for a free CPU that the excess must exceed"
    ),
    loader_queue_ratio=Limit(
        0.5, "share of the excess from which loaders that wait for a free CPU are its cause"
    ),
    gpu_idle_ratio=Limit(
        0.5, "share of the excess for which the rank's GPU must idle in the traced steps"
    ),
)
def uneven_input(
    step_log: StepLogResult,
    pauses: PausesResult,
    stragglers: StragglersResult,
    idle: IdleResult,
    waterfall: WaterfallResult,
    limits: Limits,
) -> Iterator[Draft]:
    """One or a few ranks wait longer for their batches than the others."""
    step, waits = step_log.step_ns, _input_ns(step_log, pauses)
    if not step or len(waits) < 2:
        return  # bare traces, or one rank alone
    usual = dict(zip(waits, medians_of_others([*waits.values()]), strict=True))
    excess = {rank: wait - usual[rank] for rank, wait in waits.items()}
    min_excess = limits["min_step_ratio"] * step
    named = named_for_late_input(stragglers)
    longer = tuple(rank for rank, more in excess.items() if more > min_excess and rank not in named)
    queued = pauses.queued_ns
    loader_queued = {rank.rank: rank.input_queue_ns_per_step or 0 for rank in pauses.ranks}
    late = tuple(
        rank
        for rank in longer
        if excess[rank] > limits["queue_ratio"] * queued.get(rank, 0)
        and loader_queued.get(rank, 0) < limits["loader_queue_ratio"] * excess[rank]
    )
    if longer and not late:
        raise InsufficientEvidenceError(_uncertain(longer, excess, queued, loader_queued))
    idle_ns = idle_gpu_ns(idle, waterfall, step)
    hidden = hidden_waits({r: excess[r] for r in late}, idle_ns, limits["gpu_idle_ratio"])
    delayed = tuple(rank for rank in late if rank not in hidden)
    if late and not delayed:
        raise InsufficientEvidenceError(_hidden(late, excess, idle_ns))
    late = delayed
    if not late:
        return
    worst = max(late, key=lambda rank: excess[rank])
    of_rank = "" if len(late) == 1 else f" on rank {worst}"
    yield Draft(
        headline=f"{_who(late)} {format_ratio(waits[worst] / step)} of each step for input",
        message=(
            f"It takes {format_duration(waits[worst])}{of_rank}; the median of its peers is "
            f"{format_duration(usual[worst])}."
        ),
        cost_ns_per_step=int(excess[worst]),
        ranks=late,
        evidence=("step_log.ranks", "pauses.ranks"),
        without="uneven-input",
        explains=("COM102", "COM103"),
    )


def _input_ns(step_log: StepLogResult, pauses: PausesResult) -> dict[int, int]:
    """Input time per step by rank; waits for a loader inside the phase count once."""
    loader = {rank.rank: rank.input_ns_per_step for rank in pauses.ranks}
    return {
        rank.rank: rank.phases.get("input", 0) + loader.get(rank.rank, 0) for rank in step_log.ranks
    }


def _uncertain(
    ranks: tuple[int, ...],
    excess: dict[int, float],
    queued: dict[int, int],
    loader_queued: dict[int, int],
) -> str:
    """Say why a busy machine may explain the longer wait."""
    worst = max(ranks, key=lambda rank: excess[rank])
    waits = f"rank {worst} waits {format_duration(excess[worst])} longer for input than its peers"
    if loader_queued.get(worst, 0) > queued.get(worst, 0):
        wait = format_duration(loader_queued[worst])
        return (
            f"{waits}, but the machine is busy: its loader spends {wait} of that waiting for a "
            "free CPU"
        )
    wait = format_duration(queued.get(worst, 0))
    return (
        f"{waits}, but the machine is busy: its training thread waits {wait} of each step for a "
        "free CPU, and so may its loader"
    )


def _hidden(ranks: tuple[int, ...], excess: dict[int, float], idle_ns: dict[int, float]) -> str:
    """Say that the GPU works while the CPU waits."""
    worst = max(ranks, key=lambda rank: excess[rank])
    return (
        f"rank {worst} waits {format_duration(excess[worst])} longer for input than its peers, but"
        f" its GPU has work meanwhile: it idles for {format_duration(idle_ns[worst])} of a step"
    )


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]} waits"
    return f"{capitalized(few_ranks(ranks))} wait up to"


@rule(
    "INP104",
    Severity.INFO,
    exposed_ratio=Limit(0.01, "share of the step that exposed copies may take"),
    warning_ratio=Limit(0.05, "share of the step from which the finding is a warning"),
)
def pageable_copies(settings: SettingsResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """Batches are copied to the GPU from pageable memory, and nothing overlaps with these
    copies.
    """
    if not any(rank.num_pageable for rank in settings.feed):
        return
    step = times.mean_step()
    cost = step.mean(sum(rank.exposed_pageable_ns for rank in settings.feed))
    if step.ratio(cost) < limits["exposed_ratio"]:
        return
    spans = {rank.rank: rank.span_ns for rank in times.waterfall.ranks}
    count = sum(rank.num_pageable for rank in settings.feed) / step.num_samples
    yield Draft(
        headline=f"Copies from pageable CPU memory alone take {step.part(cost)}",
        message=f"{step.amount(cost)} in {_copies(count)} per {step.word}{_loader(settings)}.",
        cost_ns_per_step=cost,
        without=f"pause {PAGEABLE}",
        ranks=tuple(
            rank.rank
            for rank in settings.feed
            if rank.exposed_pageable_ns >= limits["exposed_ratio"] * spans.get(rank.rank, 0) > 0
        ),
        evidence=("settings.feed", "waterfall.all.exposed_copy_ns"),
        severity=Severity.WARNING if step.ratio(cost) >= limits["warning_ratio"] else None,
        explains=("MEM101",),
    )


def _copies(count: float) -> str:
    return "1 copy" if count == 1 else f"{count:.3g} copies"


def _loader(settings: SettingsResult) -> str:
    """A clause on the loaders' settings; empty if any loader pins its memory or none is known."""
    is_off = settings.loaders and not any(one.pin_memory for one in settings.loaders)
    return "; the data loader has pin_memory=False" if is_off else ""


@rule(
    "INP105",
    Severity.WARNING,
    costs_time=False,
    min_epochs=Limit(2.0, "epochs that must have begun"),
)
def sampler_without_set_epoch(settings: SettingsResult, limits: Limits) -> Iterator[Draft]:
    """A `DistributedSampler` that shuffles draws the same order in every epoch."""
    for one in settings.loaders:
        if not one.shuffle or one.num_orders != 1 or one.num_epochs < limits["min_epochs"]:
            continue
        yield Draft(
            headline=f"Data had the same order in {one.num_epochs:,} epochs, without set_epoch()",
            message=(
                f"The {one.sampler} of {name_ranks(one.ranks)} drew the same samples in the same "
                "order each time."
            ),
            ranks=one.ranks,
            evidence=("settings.loaders",),
        )


_SAME_DATA = frozenset((MeshAxis.TP, MeshAxis.PP, MeshAxis.CP, MeshAxis.EP))
"""Axes whose ranks share the work on the same samples."""


@rule("INP106", Severity.ERROR, costs_time=False)
def unsharded_data(
    settings: SettingsResult,
    collectives: CollectivesResult,
    messages: MessagesResult,
) -> Iterator[Draft]:
    """All ranks of a data-parallel job train on the same batches."""
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
            headline=f"{len(one.ranks):,} ranks read the same data, and add nothing to each other",
            message=(
                f"{capitalized(name_ranks(one.ranks))} begin with the same batch of {one.dataset} "
                f"({how})."
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
