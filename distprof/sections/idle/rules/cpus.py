"""Rules about CPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from statistics import median

from distprof.escape import few_ranks, fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.settings import ConfinedRank, HostSetup, SettingsResult
from distprof.sections.shares import hidden_waits, idle_gpu_ns, medians_of_others
from distprof.sections.step_log import StepLogResult
from distprof.sections.time import WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks


@rule(
    "HST108",
    Severity.WARNING,
    costs_time=False,
    threads_per_cpu=Limit(1.5, "torch threads per CPU of a host"),
    busy_ratio=Limit(0.85, "share of time for which the CPUs must be busy"),
)
def oversubscribed_threads(settings: SettingsResult, limits: Limits) -> Iterator[Draft]:
    """Ranks that compute on the CPU start more threads than the host has CPUs."""
    hosts = [
        host
        for host in settings.hosts
        if _per_cpu(host) > limits["threads_per_cpu"]
        and (host.cpu_busy_ratio or 0.0) >= limits["busy_ratio"]
    ]
    if not hosts:
        return
    worst = max(hosts, key=_per_cpu)
    each = f"{_per_cpu(worst):.3g} threads of the job compete for each CPU"
    yield Draft(
        headline=fitting(f"{each} of {worst.host or 'a host'}", each),
        message=(
            f"{worst.num_local_ranks} ranks with {worst.num_threads} threads each share "
            f"{worst.num_cpus} CPUs, which are busy for {format_ratio(worst.cpu_busy_ratio)} of "
            "the time."
        ),
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        evidence=("settings.hosts",),
    )


def _per_cpu(host: HostSetup) -> float:
    """Threads per CPU; 0 if ranks have one thread each or compute on an accelerator."""
    if not host.is_cpu or not host.num_cpus or (host.num_threads or 0) < 2:
        return 0.0
    return host.num_local_ranks * (host.num_threads or 0) / host.num_cpus


@rule(
    "HST110",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that waiting for a CPU may take"),
    over_others=Limit(
        2.0, "wait over that of the other ranks, in proportion to CPU time, that names a rank"
    ),
    busy_step_ratio=Limit(
        0.1, "share of the step that the other ranks wait, too, on a busy machine"
    ),
    over_others_if_busy=Limit(
        2.5, "wait over that of the other rank that waits longest, on a busy machine"
    ),
    over_others_if_confined=Limit(
        1.5, "the same of a rank that may use half of the median rank's CPUs or fewer"
    ),
    of_longest=Limit(0.5, "wait over the longest from which a rank is named with it"),
    gpu_idle_ratio=Limit(
        0.5, "share of the wait for which the rank's GPU must idle in the traced steps"
    ),
)
def cpu_contention(
    pauses: PausesResult,
    step_log: StepLogResult,
    settings: SettingsResult,
    idle: IdleResult,
    waterfall: WaterfallResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Training threads are ready to run, but wait for a free CPU: other processes, or too many
    threads of the job itself, share the host's CPUs.
    """
    step = step_log.step_ns or step_log.traced_median_ns
    if not step:
        return  # bare traces, which do not record it
    least = limits["min_step_ratio"] * step
    waits = pauses.queued_ns
    waiting = tuple(rank for rank, ns in waits.items() if ns > least)
    if not waiting:
        return
    idle_ns = idle_gpu_ns(idle, waterfall, step)
    hidden = hidden_waits(waits, idle_ns, limits["gpu_idle_ratio"])
    if hidden >= {*waiting}:
        longest = max(waiting, key=lambda rank: waits[rank])
        raise InsufficientEvidenceError(
            f"rank {longest} waits {format_duration(waits[longest])} of each step for a free CPU, "
            f"but its GPU has work meanwhile: it idles for {format_duration(idle_ns[longest])} of "
            "a step"
        )
    waiting = tuple(rank for rank in waiting if rank not in hidden)
    confined = {one.rank: one for host in settings.hosts for one in host.confined}
    starved = _starved(pauses, step, limits, confined)
    alone = _without_chance(tuple(r for r in starved if r not in hidden), settings)
    competing = (host.without_spare for host in settings.hosts)
    rivals = (one for one in competing if {*one} & {*waiting})
    named = alone or tuple(sorted({*waiting}.union(*rivals)))
    worst = max(waits[rank] for rank in waiting)
    headline, message = (
        _of_few(alone, waits, step, confined) if alone else _of_all(named, worst, step, settings)
    )
    yield Draft(
        headline=headline,
        message=message,
        fix=advice("cpu-contention", "pinning" if confined.keys() & set(alone) else "others"),
        cost_ns_per_step=worst,
        confidence=Confidence.INFERRED,
        ranks=named,
        evidence=("pauses.ranks", "step_log.median_ns"),
        without="late ranks",
        is_partial=True,  # on an idle host, ranks would not only keep up with each other
        explains=("COM102", "COM103", "STR110"),
    )


def _starved(
    pauses: PausesResult, step_ns: int, limits: Limits, confined: Collection[int]
) -> tuple[int, ...]:
    """Ranks that wait far longer for a CPU than the others, fewer than half of all ranks."""
    # On a busy machine, a rank that runs longer also waits longer, in proportion. A rank that runs
    # less is not expected to wait less, because CPU times vary. A rank must also wait far longer
    # than the other rank with the longest wait, because one of several ranks waits twice as long as
    # the median by chance. A smaller difference is enough for a rank that may use far fewer CPUs
    # than the others.
    recorded = [rank.run_queue_ns_per_step for rank in pauses.ranks]
    waits = [wait for wait in recorded if wait is not None]
    if len(waits) < max(2, len(recorded)):
        return ()
    ran = [rank.cpu_ns_per_step or 0 for rank in pauses.ranks]
    ran = ran if all(ran) else [1] * len(ran)
    rates = [wait / ns for wait, ns in zip(waits, ran, strict=True)]
    usual = zip(medians_of_others(waits), medians_of_others(rates), ran, strict=True)
    expected = [max(wait, rate * ns) for wait, rate, ns in usual]

    def times(row: int, limit: str) -> float:
        is_confined = pauses.ranks[row].rank in confined
        return limits["over_others_if_confined" if is_confined else limit]

    found = [
        row
        for row, (wait, usual_ns) in enumerate(zip(waits, expected, strict=True))
        if wait - usual_ns > limits["min_step_ratio"] * step_ns
        and wait > times(row, "over_others") * usual_ns
    ]
    most = max((waits[row] for row in found), default=0)
    found = [row for row in found if waits[row] > limits["of_longest"] * most]
    rest = sorted(set(range(len(waits))) - set(found))
    if len(found) > len(rest):
        return ()
    if found and median(waits[row] for row in rest) > limits["busy_step_ratio"] * step_ns:
        wait, rate = max(waits[row] for row in rest), max(rates[row] for row in rest)
        found = [
            row
            for row in found
            if waits[row] > times(row, "over_others_if_busy") * max(wait, rate * ran[row])
        ]
    return tuple(pauses.ranks[row].rank for row in found)


def _without_chance(alone: tuple[int, ...], settings: SettingsResult) -> tuple[int, ...]:
    """The ranks that do not merely lose out to another rank on the same CPUs."""
    by_chance = {
        rank
        for host in settings.hosts
        for competing in (host.crowded, host.without_spare)
        if {*competing} - {*alone}
        for rank in competing
    }
    return tuple(rank for rank in alone if rank not in by_chance)


def _of_few(
    alone: tuple[int, ...],
    waits: Mapping[int, int],
    step: int,
    confined: Mapping[int, ConfinedRank],
) -> tuple[str, str]:
    worst = max(waits[rank] for rank in alone)
    rest = max(ns for rank, ns in waits.items() if rank not in alone)
    few = [confined[rank] for rank in alone if rank in confined]
    least = min(few, key=lambda one: one.num_cpus, default=None)
    confinement = ""
    if least is not None:
        cpus = "1 CPU" if least.num_cpus == 1 else f"{least.num_cpus:,} CPUs"
        usual = f"the median rank of its host {least.usual_cpus:,}"
        confinement = f" Rank {least.rank} may use {cpus}, {usual}."
    share = f"{format_ratio(worst / step)} of each step"
    wait = "It waits" if len(alone) == 1 else f"{capitalized(name_ranks(alone))} wait up to"
    return f"Other processes take the CPU of {few_ranks(alone)} for {share}", (
        f"{wait} {format_duration(worst)} for a free CPU, the other ranks "
        f"{format_duration(rest)} at most.{confinement}"
    )


def _of_all(
    ranks: tuple[int, ...], worst: int, step: int, settings: SettingsResult
) -> tuple[str, str]:
    wait = "waits" if len(ranks) == 1 else "wait up to"
    are_few = {*ranks} <= settings.without_spare
    reason = (
        "There are no more CPUs than ranks, and each rank has more than one thread"
        if are_few
        else "Other processes, or too many threads of the job, take them"
    )
    unsure = ", so any of these ranks may be late by chance" if len(ranks) > 1 else ""
    share = f"{format_ratio(worst / step)} of each step"
    return f"The machine is busy: ranks wait for a free CPU for {share}", (
        f"{capitalized(name_ranks(ranks))} {wait} {format_duration(worst)}. {reason}{unsure}."
    )
