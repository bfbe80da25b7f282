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
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


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
    """The GPU idles while the training loop waits for its next batch.

    ## Why it costs time
    A batch that is not ready when the step begins stalls the rank and, at the next collective, all
    other ranks.

    ## Evidence needed
    CPU annotations of the data loader (`enumerate(DataLoader)#…`, `…DataLoader…__next__`, or
    `distprof:input`) on the thread that launches. If the straggler rules already name every waiting
    rank for its late input, this rule is silent: these ranks are the problem, not the loop.

    ## How the cost is computed
    Idle GPU time covered by these annotations, mean over ranks and steps. If the input of one rank
    is late, its straggler finding includes the loss of the other ranks. The cost is not part of any
    other finding.

    ## How to fix
    Raise `num_workers` until the wait is gone, then set `pin_memory=True`,
    `persistent_workers=True` and a larger `prefetch_factor`, and copy with `non_blocking=True`. If
    workers cannot keep up, decode and tokenise ahead of time, use larger shards, or replace network
    storage with a local cache.

    More workers do not help if the training thread does not sleep meanwhile, which the step log of
    a run directory shows: then it is busy itself, for example with unpacking what a worker sends.
    Collate each batch into few large tensors; the thread of `pin_memory=True` unpacks them.

    ## When it is wrong
    The first step of an epoch starts the workers. A recording of that step alone says nothing about
    later steps.

    ## Sources
    Formula sheet, "Measured from traces" (input wait). PyTorch documentation of `DataLoader`.
    """
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
    """The training thread loads its batches itself, and the step waits for them.

    ## Why it costs time
    With `num_workers=0` a `DataLoader` reads, decodes and collates each batch only when the loop
    asks for it, while the GPU has nothing to do. Workers do the same work during the step.

    ## Evidence needed
    Traces with the ranges of the data loader (`_SingleProcessDataLoaderIter.__next__` on every
    load, and no loads by workers), or a run directory with `settings.json` in which no iterated
    loader has workers. The time for which the loop waits comes from the traces or from
    `pauses.jsonl`. If the straggler rules already name every waiting rank for its late input, this
    rule is silent.

    ## How the cost is computed
    Idle GPU time covered by the loads, mean over ranks and steps; without traces, the logged waits.
    Enough workers recover nearly all of it. `input-bound` counts the same time, so this finding
    replaces it.

    ## How to fix
    Use `DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)`, then add workers
    until the wait is gone. If the dataset is in memory and batches are only indexed, index whole
    batches at once instead (`__getitems__`, or a `batch_sampler` with `batch_size=None`).

    ## When it is wrong
    Loads that are slow because of the storage stay slow with workers, but run during the step.
    Datasets that hold open handles (databases, CUDA tensors) need care before workers can read
    them.

    ## Sources
    Formula sheet, "Anti-patterns" (input pipeline without workers). PyTorch documentation of
    `torch.utils.data`; names of the ranges from `torch/utils/data/dataloader.py`.
    """
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
    """Data loaders have more workers than the host has CPUs, all CPUs are busy, and the step waits.

    ## Why it costs time
    Workers beyond the number of CPUs have to share them. Each batch takes longer, and the training
    threads get less CPU time and launch later.

    ## Evidence needed
    A run directory with `settings.json`, and the time for which the loop waits, from traces or from
    `pauses.jsonl`. The rule takes the loader with the most workers on each rank, adds up its
    workers over the ranks of a host, and compares them with the CPUs that these ranks may use. It
    also uses how busy the CPUs were. It stays silent if no rank waits for data, or if the CPUs have
    time left, because the workers then wait for storage or the network.

    ## How the cost is computed
    Idle GPU time while the loop waits for data, mean over ranks and steps; without traces, the
    logged waits. This is an upper bound, because fewer workers may also be too slow. `input-bound`
    counts the same time, so this finding replaces it.

    ## How to fix
    Lower `num_workers` until the workers and training threads of all ranks fit the CPUs. If the
    workers then cannot keep up, decode ahead of time, use more CPUs per GPU, or move decoding to
    the GPU.

    ## When it is wrong
    The CPUs may be busy with another job. The rule ignores the CPU quota of a container and only
    counts the CPUs that it may use.

    ## Sources
    `torch.utils.data.DataLoader` warns if one rank has more workers than CPUs; this rule counts all
    ranks of the host. Formula sheet, "Measured from traces" (input wait).
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

    ## Why it costs time
    A synchronous job runs at the pace of its slowest rank. One slow loader delays all ranks, even
    if all other loaders are on time, and even if the slow rank changes every hour.

    ## Evidence needed
    Input readiness of each rank over time (`distprof analyze data_readiness.json`, or `--with`):
    the share of time in which the rank did not wait for its loader.

    ## How the cost is computed
    No cost: readiness shows that a rank waited, but not how long per step. A step log with the
    phase `input` or a trace shows that (`input-bound`, `uneven-input`).

    ## How to fix
    If it is always the same rank, look at its machine, its storage and its shard. If the rank
    changes, the loaders have no reserve: use more workers, prefetch deeper, or pack samples so that
    all batches cost the same.

    ## When it is wrong
    Readiness is measured over intervals. A short wait in an interval counts as much as a long one.

    ## Sources
    facebookresearch/spdl, "data readiness"; formula sheet, "Measured from traces" (input wait).
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
    named = list(shares)[:MAX_NAMED]
    names = ", ".join(f"rank {rank} ({format_ratio(shares[rank])})" for rank in named)
    left_out = len(shares) - len(named)
    return f"Most often it is {names}{f' and {left_out} more' if left_out else ''}."


def _fix(order: list[int]) -> str:
    if len(set(order)) == 1:
        return f"Look at rank {order[0]}: its machine, its storage and its shard of the data."
    return advice("input-not-ready")


@rule(
    "INP109",
    Severity.WARNING,
    input_ratio=Limit(0.1, "share of an iteration that waiting for input may take"),
)
def input_bound_by_log(
    log: TrainingLogResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """According to the training program's own timer, the training loop waits for its next batch.

    ## Why it costs time
    While the loop waits for a batch, it launches nothing, and the GPUs run dry.

    ## Evidence needed
    A log of the training program (`distprof analyze train.log`, or `--with train.log`) that prints
    the time for data next to the time of an iteration: `data_time` of MMEngine and Detectron2,
    `Data` of timm, torchvision, OpenCLIP and PyTorch's examples, `batch-generator` of Megatron-LM,
    Lightning's `train_dataloader_next`, or a timer with such a name of any other program.

    ## How the cost is computed
    The mean of that timer per iteration. These programs count it as part of the iteration.

    ## How to fix
    Give the data loader more workers and a deeper prefetch, keep workers alive between epochs, pin
    memory and copy without blocking. If the wait remains, look at decoding and at the storage.

    ## When it is wrong
    While the loop waits for data, the GPU may still compute what was launched before. A GPU that is
    busy for the whole iteration loses nothing. A trace shows whether it idles. Logs without a loss
    are not judged: a program that reads no loss need not wait for its GPU.

    ## Sources
    Formula sheet, "Measured from traces" (input wait).
    """
    timer = log.input_timer
    if timer is None or (timer.ratio or 0.0) < limits["input_ratio"] or stragglers.ranks:
        return
    is_usual = timer.median_ns > timer.mean_ns / 2
    of = "of each iteration" if is_usual else "of its time"
    usual = f" Half of the reports show {format_duration(timer.median_ns)} or less."
    yield Draft(
        headline=f"The training loop waits {format_ratio(timer.ratio)} {of} for input",
        message=(
            f"{format_duration(timer.mean_ns)} of {format_duration(log.mean_ns)}, according to the "
            f"program's timer {timer.name!r}.{'' if is_usual else usual}"
        ),
        fix=advice("input-bound", "gpu"),
        cost_ns_per_step=timer.mean_ns,
        confidence=Confidence.INFERRED,
        evidence=("training_log.timers",),
    )
