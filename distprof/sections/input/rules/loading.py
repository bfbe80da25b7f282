"""Rules about data loaders."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.settings import HostSetup, SettingsResult
from distprof.sections.shares import StepTimes
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import StragglersResult
from distprof.sections.summaries import InputReadinessResult
from distprof.sections.training_log import TrainingLogResult
from distprof.terms import AWAITED, Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import few_names, format_duration, format_ratio


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Time for which the training loop waits for its next batch, mean per step."""

    ns: int  # Mean over ranks.
    ratio: float  # Share of the step.
    part: str  # The share as text, for example ``27.8 % of each step``.
    amount: str  # The time as text, for example ``11.1 ms of 39.8 ms``.
    # Ranks that wait at least as long as the limit; empty if there are none.
    ranks: tuple[int, ...] = ()


def waiting_for_input(
    idle: IdleResult,
    times: StepTimes,
    pauses: PausesResult,
    step_log: StepLogResult,
    least_ratio: float,
) -> Waiting:
    """The wait according to the traces or, without traces, according to the probes' logs."""
    if idle.ranks:
        return _traced_waiting(idle, times, least_ratio)
    step_ns = step_log.step_ns
    if not pauses.ranks or not step_ns:
        raise InsufficientEvidenceError(
            "there are neither traces with CPU activities nor logged waits for a data loader"
        )
    waits = {rank.rank: rank.input_ns_per_step for rank in pauses.ranks}
    mean_ns = round(statistics.mean(waits.values()))
    return Waiting(
        ns=mean_ns,
        ratio=mean_ns / step_ns,
        part=f"{format_ratio(mean_ns / step_ns)} of each step",
        amount=f"{format_duration(mean_ns)} of {format_duration(step_ns)}",
        ranks=tuple(rank for rank, wait in waits.items() if wait >= least_ratio * step_ns),
    )


def _traced_waiting(idle: IdleResult, times: StepTimes, least_ratio: float) -> Waiting:
    step = times.mean_step()
    mean_ns = step.mean(step.total.idle_input_ns)
    spans = {rank.rank: rank.span_ns for rank in times.waterfall.ranks}
    late = tuple(
        rank.rank
        for rank in idle.ranks
        if rank.input_ns >= least_ratio * spans.get(rank.rank, rank.idle_ns)
    )
    return Waiting(
        ns=mean_ns,
        ratio=step.ratio(mean_ns),
        part=step.part(mean_ns),
        amount=step.amount(mean_ns),
        ranks=late,
    )


def named_for_late_input(stragglers: StragglersResult) -> set[int]:
    """Ranks whose late input a straggler rule reports."""
    return {
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is StragglerCause.LATE_INPUT
    }


@rule(
    "INP101",
    Severity.WARNING,
    idle_input_ratio=Limit(0.05, "share of the step that the GPU may wait for data"),
    error_ratio=Limit(0.2, "share of the step from which the finding is an error"),
    slept_ratio=Limit(
        0.5, "share of the wait below which a training thread that sleeps is not waiting"
    ),
)
def input_bound(
    idle: IdleResult,
    times: StepTimes,
    stragglers: StragglersResult,
    pauses: PausesResult,
    limits: Limits,
) -> Iterator[Draft]:
    """The GPU idles while the training loop waits for its next batch."""
    waiting = _traced_waiting(idle, times, limits["idle_input_ratio"])
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no CPU activities to judge by: the cause of idle time is unknown"
        )
    is_named = waiting.ranks and set(waiting.ranks) <= named_for_late_input(stragglers)
    if waiting.ratio < limits["idle_input_ratio"] or is_named:
        return
    headline = f"The training loop waits {waiting.part} for data"
    message = f"For {waiting.amount} {idle.nothing_runs}."
    fix = advice("input-bound", "cpu" if idle.is_cpu else "gpu")
    slept = [pauses.slept_ns.get(rank) for rank in waiting.ranks]
    known = [ns for ns in slept if ns is not None]
    if known and len(known) == len(slept) and max(known) < limits["slept_ratio"] * waiting.ns:
        headline = f"Fetching batches keeps the training thread busy for {waiting.part}"
        message = (
            f"For {waiting.amount} {idle.nothing_runs}; the thread sleeps for "
            f"{format_duration(max(known))} of a step."
        )
        pinned = "" if idle.is_cpu else ", and set pin_memory=True, whose thread unpacks them"
        fix = advice("input-bound", "own-work", pinned=pinned)
    yield Draft(
        headline=headline,
        message=message,
        fix=fix,
        cost_ns_per_step=waiting.ns,
        ranks=waiting.ranks,
        evidence=("idle.ranks", "waterfall.all.idle_input_ns"),
        without="input",
        severity=Severity.ERROR if waiting.ratio >= limits["error_ratio"] else None,
    )


@rule(
    "INP103",
    Severity.WARNING,
    wait_ratio=Limit(0.05, "share of the step that the loop may wait for data"),
    error_ratio=Limit(0.2, "share of the step from which the finding is an error"),
)
def loader_without_workers(
    settings: SettingsResult,
    idle: IdleResult,
    times: StepTimes,
    pauses: PausesResult,
    step_log: StepLogResult,
    stragglers: StragglersResult,
    limits: Limits,
) -> Iterator[Draft]:
    """The training thread loads its batches itself, and the step waits for them."""
    if not _loads_itself(settings):
        return
    min_ratio = limits["wait_ratio"]
    waiting = waiting_for_input(idle, times, pauses, step_log, min_ratio)
    is_named = waiting.ranks and set(waiting.ranks) <= named_for_late_input(stragglers)
    if waiting.ratio < min_ratio or is_named:
        return
    yield Draft(
        headline=f"The data loader has no workers: training waits {waiting.part}",
        message=(
            f"For {waiting.amount} {idle.nothing_runs} while the training thread loads its batch "
            "itself."
        ),
        fix=advice("loader-without-workers", "cpu" if idle.is_cpu else "gpu"),
        cost_ns_per_step=waiting.ns,
        ranks=waiting.ranks,
        evidence=("settings.feed", "settings.loaders", "waterfall.all.idle_input_ns"),
        without="input",
        severity=Severity.ERROR if waiting.ratio >= limits["error_ratio"] else None,
        explains=("INP101",),
    )


def _loads_itself(settings: SettingsResult) -> bool:
    """Whether no batch came from a worker, according to the traces or, failing that, loaders."""
    if any(rank.num_own_loads or rank.num_worker_loads for rank in settings.feed):
        return not any(rank.num_worker_loads for rank in settings.feed)
    return bool(settings.loaders) and not any(one.num_workers for one in settings.loaders)


@rule(
    "INP107",
    Severity.WARNING,
    workers_per_cpu=Limit(1.0, "data loader workers per CPU of a host"),
    busy_ratio=Limit(0.85, "share of time for which the CPUs must be busy"),
    wait_ratio=Limit(0.05, "share of the step that the loop may wait for data"),
    error_ratio=Limit(0.2, "share of the step from which the finding is an error"),
)
def loader_oversubscribed(
    settings: SettingsResult,
    idle: IdleResult,
    times: StepTimes,
    pauses: PausesResult,
    step_log: StepLogResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Data loaders have more workers than the host has CPUs, all CPUs are busy, and the step
    waits.
    """
    hosts = [
        host
        for host in settings.hosts
        if _per_cpu(host) > limits["workers_per_cpu"]
        and (host.cpu_busy_ratio or 0.0) >= limits["busy_ratio"]
    ]
    if not hosts:
        return
    min_ratio = limits["wait_ratio"]
    waiting = waiting_for_input(idle, times, pauses, step_log, min_ratio)
    if waiting.ratio < min_ratio:
        return
    worst = max(hosts, key=_per_cpu)
    yield Draft(
        headline=f"Too many loader workers for the CPUs: training waits {waiting.part}",
        message=(
            f"{waiting.amount}. On {worst.host or 'one host'} "
            f"{worst.num_workers:,} loader workers of {len(worst.ranks)} ranks share "
            f"{worst.num_cpus} CPUs, which are busy for "
            f"{format_ratio(worst.cpu_busy_ratio)} of the time."
        ),
        cost_ns_per_step=waiting.ns,
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        evidence=("settings.hosts", "waterfall.all.idle_input_ns"),
        without="input",
        severity=Severity.ERROR if waiting.ratio >= limits["error_ratio"] else None,
        explains=("INP101",),
    )


def _per_cpu(host: HostSetup) -> float:
    return host.num_workers / host.num_cpus if host.num_cpus else 0.0


MAX_NAMED = 6


@rule(
    "INP108",
    Severity.WARNING,
    costs_time=False,
    job_ratio=Limit(0.9, "mean readiness that the least ready rank must reach"),
)
def input_not_ready(readiness: InputReadinessResult, limits: Limits) -> Iterator[Draft]:
    """According to the measured readiness of data loading, at least one rank often waits for its
    input.
    """
    if readiness.job_ratio is None or readiness.job_ratio >= limits["job_ratio"]:
        return
    samples: dict[int, int] = {}
    for period in readiness.periods:
        samples[period.rank] = samples.get(period.rank, 0) + period.num_samples
    ordered = sorted(samples, key=lambda rank: (-samples[rank], rank))
    shares = {rank: samples[rank] / max(readiness.num_samples, 1) for rank in ordered}
    share = format_ratio(readiness.job_ratio)
    yield Draft(
        headline=f"Input delays the job: the least ready rank has data for {share} of the time",
        message=_named(shares),
        fix=_fix(ordered),
        ranks=tuple(sorted(ordered)),
        evidence=("input_readiness.ranks", "input_readiness.periods"),
    )


def _named(shares: dict[int, float]) -> str:
    if not shares:
        return "Which rank it is keeps changing."
    names = [f"rank {rank} ({format_ratio(share)})" for rank, share in shares.items()]
    return f"Most often it is {few_names(names, MAX_NAMED)}."


def _fix(order: list[int]) -> str:
    if len(set(order)) == 1:
        return f"Look at rank {order[0]}: its machine, its storage and its shard of the data."
    return advice("input-not-ready")


@rule(
    "INP109",
    Severity.WARNING,
    input_ratio=Limit(0.2, "share of an iteration that waiting for input may take"),
)
def input_bound_by_log(
    log: TrainingLogResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """According to the training program's own timer, the training loop waits for its next batch."""
    timer = log.input_timer
    is_start = log.num_reports == 1 and log.last_iteration in (0, 1)  # of the workers, too
    if timer is None or (timer.ratio or 0) < limits["input_ratio"] or stragglers.ranks or is_start:
        return
    is_usual = timer.median_ns > timer.mean_ns / 2
    of = f"of each {log.unit}" if is_usual else "of its time"
    named = f"timer {timer.name!r}" if {*timer.name} & {*"_-"} else "own timer"  # as printed
    usual = f" Half of the reports show {format_duration(timer.median_ns)} or less."
    late = next((note for note in log.unavailable if note.endswith(AWAITED)), "")
    who, _, rest = late.partition(" take")
    who = who or f"The training loop{f' of {log.whose}' * bool(log.whose)}"
    does, others = "wait" if rest[:1] == " " else "waits", ", and the others wait for it"
    yield Draft(
        headline=f"{who} {does} {format_ratio(timer.ratio)} {of} for input{others * bool(late)}",
        message=(
            f"{format_duration(timer.mean_ns)} of {format_duration(log.mean_ns)}, according to the "
            f"program's {named}.{'' if is_usual else usual}"
        ),
        fix=advice("input-bound", "rank" if late else "log"),
        cost_ns_per_step=timer.mean_ns,
        confidence=Confidence.INFERRED,
        evidence=("training_log.timers",),
    )
