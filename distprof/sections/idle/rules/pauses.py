"""Rules about pauses of the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.capture import CaptureResult
from distprof.sections.idle import COLLECTION, MEMORY, IdleResult, PausesResult
from distprof.sections.shares import StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks

OFTEN = 1.0
"""Calls per step below which the program already does what the fix says."""


@rule(
    "HST102",
    Severity.WARNING,
    idle_sync_ratio=Limit(
        0.02, "share of the step that the GPU may idle after synchronising calls"
    ),
)
def synchronising_calls(idle: IdleResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """The CPU waits for the GPU inside the step, and the GPU then waits for the CPU.

    ## Why it costs time
    While the CPU waits, it launches nothing. When it resumes, the queue is empty, and the GPU idles
    until new work arrives. Each call leaves a gap.

    ## Evidence needed
    Runtime calls of at least one rank (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, blocking
    copies and their HIP names) and launch calls.

    The operators around the calls, if the trace has them, name the callers.

    ## How the cost is computed
    Idle GPU time caused by synchronising calls that delayed the next launches, mean over ranks and
    steps: after the call, and later, for as long as launches would not have been late without it.
    Time in which the CPU is blocked while the GPU works costs nothing and is not counted. A call
    that is made less than once per step is not reported: reading results every N steps is the fix.
    The cost is not part of any other finding.

    ## How to fix
    Find the calls: `.item()`, `.cpu()`, `.tolist()`, `print(loss)`, `if tensor:`, `torch.nonzero`,
    boolean masks, `torch.cuda.synchronize()`, `clip_grad_norm_` with `error_if_nonfinite`. Keep
    metrics on the GPU and read them every N steps, copy with `non_blocking=True` from pinned
    memory, and find the remaining calls with `torch.cuda.set_sync_debug_mode("warn")`.

    ## When it is wrong
    One synchronisation at the end of a step is harmless if the first launches of the next step are
    quick. Some frameworks synchronise on purpose to limit memory.

    ## Sources
    Formula sheet, "Measured from traces" (idle). PyTorch documentation, performance tuning guide.
    """
    step = times.mean_step()
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no runtime calls to judge by: the cause of idle time is unknown"
        )
    cost = step.mean(step.total.idle_sync_ns)
    if step.ratio(cost) < limits["idle_sync_ratio"] or not idle.sync_calls:
        return
    worst = max(idle.sync_calls, key=lambda call: call.idle_ns_per_step)
    if worst.count_per_step < OFTEN:
        return
    called = f"{worst.caller} ({worst.name})" if worst.caller else worst.name
    yield Draft(
        headline=f"The GPU idles {step.part(cost)} after the CPU has waited for it",
        message=(
            f"{step.amount(cost)}, mostly because of {called}: {worst.count_per_step:.1f} calls "
            f"per {step.word} on {name_ranks(worst.ranks)}, "
            f"{format_duration(worst.idle_ns_per_step)} idle."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all.idle_sync_ns"),
        without="sync-calls",
    )


@rule(
    "HST103",
    Severity.WARNING,
    min_step_ratio=Limit(0.01, "share of the step that collections may take"),
)
def garbage_collection_pauses(
    pauses: PausesResult, idle: IdleResult, limits: Limits
) -> Iterator[Draft]:
    """Python's garbage collector stops the training thread for a noticeable share of the time.

    ## Why it costs time
    While it collects, the CPU launches nothing. Ranks collect at different moments, so at the next
    collective all of them wait for the rank that collected.

    ## Evidence needed
    A run directory with pauses (`pauses.jsonl`) and a step log, both of the whole run and not only
    of the traced steps.

    ## How the cost is computed
    Time in collections on the rank that collects most, mean per step, without the first step. The
    real cost is higher if ranks collect at different moments, and lower if the GPU has work queued.
    A straggler finding may include the time that other ranks wait for this one.

    ## How to fix
    After set-up call `gc.collect()` and `gc.freeze()`, so that the collector skips long-lived
    objects. Then call `gc.disable()`, and `gc.collect()` on all ranks in the same step, every few
    hundred steps.

    ## When it is wrong
    In a short run, one long collection weighs more than in a day of training.

    ## Sources
    Python documentation of the module `gc`.
    """
    least = limits["min_step_ratio"]
    paused = [rank for rank in pauses.ranks if 0 < least * rank.step_ns < rank.gc_ns_per_step]
    if not paused:
        return
    ranks = tuple(rank.rank for rank in paused)
    worst = max(paused, key=lambda rank: rank.gc_ns_per_step)
    taken = format_ratio(worst.gc_ns_per_step / worst.step_ns)
    alone = len(ranks) == 1
    who = capitalized(f"{few_ranks(ranks)} {'spends' if alone else 'spend up to'}")
    which = f"the longest of {worst.num_gc} collections"
    if worst.num_gc == 1:
        which = "its only collection"
    without = f"rank {ranks[0]}" if alone else ""
    if any(pause.kind == "collection" and pause.idle_ns_per_step for pause in idle.pauses):
        without = f"pause {COLLECTION}"
    yield Draft(
        headline=f"{who} {taken} of each step in garbage collection",
        message=(
            f"Python's collector takes {format_duration(worst.gc_ns_per_step)} of "
            f"{format_duration(worst.step_ns)} (mean of all steps); {which} takes "
            f"{format_duration(worst.longest_gc_ns)}."
        ),
        cost_ns_per_step=worst.gc_ns_per_step,
        ranks=ranks,
        evidence=("pauses.ranks", "step_log.ranks"),
        without=without,
    )


DOMINATES = 0.5
"""From this share of the step on, finding the cause comes before any other fix."""


@rule(
    "HST109",
    Severity.WARNING,
    idle_ratio=Limit(0.2, "share of the step that may be idle for unknown causes"),
)
def unexplained_idle(
    idle: IdleResult, capture: CaptureResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """The GPU idles for a fifth of the step or more, and the recording does not show why.

    ## Why it costs time
    Time in which the GPU does nothing is lost. Without the cause it is unknown whether any other
    fix helps. If the GPU idles for half of the step or more, this finding comes first, before the
    plan.

    ## Evidence needed
    GPU activities of at least one rank.

    ## How the cost is computed
    Idle GPU time that no launch, synchronising call, input or communication explains, mean over
    ranks and steps. It is an upper bound: the trace may lack kernels that ran in this time.

    ## How to fix
    Record what is missing. Without CPU activities no idle time has a cause: profile with
    `ProfilerActivity.CPU`, and read it (no `--device-only`). Inside CUDA graphs some versions of
    the profiler lose kernels: record a few steps without graphs, or with a newer version of PyTorch
    and CUPTI. Otherwise look at the gaps in a timeline, and record with Python stacks.

    ## When it is wrong
    If the trace lacks kernels, the GPU was busy. Compare the power draw or the utilisation that
    `nvidia-smi` shows with the computation in the report.

    ## Sources
    Formula sheet, "Measured from traces" (idle time by cause).
    """
    if capture.filtered_ranks:
        raise InsufficientEvidenceError(
            "rows were removed from traces, so the GPU may have been busy when it seems idle"
        )
    step = times.mean_step()
    cost = step.mean(step.total.idle_unknown_ns)
    if idle.is_cpu or step.ratio(cost) < limits["idle_ratio"]:
        return
    why, fix = _reason(idle)
    yield Draft(
        headline=f"The GPU idles {step.part(cost)}, and the recording does not show why",
        message=f"{step.amount(cost)}{why}.",
        fix=fix,
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("idle.ranks", "waterfall.all.idle_unknown_ns"),
        comes_first=step.ratio(cost) >= DOMINATES,
    )


def _reason(idle: IdleResult) -> tuple[str, str]:
    """Why the cause is unknown, and how to find it."""
    if not idle.ranks:
        return ": it has no CPU activities, or they were not read", (
            "Also profile with ProfilerActivity.CPU, and read these activities (no --device-only)."
        )
    unknown = sum(rank.unknown_ns for rank in idle.ranks)
    inside = sum(rank.within_launch_ns for rank in idle.ranks)
    if inside > unknown / 2:
        return (
            f": {format_ratio(inside / unknown)} of this time is inside CUDA graphs, whose kernels "
            "the trace may lack"
        ), advice("unexplained-idle", "graphs")
    return ", although kernels were launched in time", advice("unexplained-idle", "others")


@rule(
    "HST111",
    Severity.WARNING,
    idle_ratio=Limit(0.02, "share of the step that the GPU may idle due to such calls"),
)
def memory_calls(idle: IdleResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """The CPU allocates or frees memory of the GPU inside steps, and the GPU runs out of work
    meanwhile.

    ## Why it costs time
    PyTorch's caching allocator keeps the memory of freed tensors, so a steady step makes none of
    these calls. `cudaFree` waits for the GPU and takes tens to hundreds of microseconds,
    `cudaMalloc` as long. After `torch.cuda.empty_cache()`, or when the memory is nearly full and
    the allocator has to free what it cached, each step pays for them again.

    ## Evidence needed
    Runtime calls and launch calls of at least one rank.

    ## How the cost is computed
    Idle GPU time that these calls caused, mean over ranks and steps: at most as long as they
    lasted. The time recovered comes from simulating the step without it.

    ## How to fix
    Do not call `torch.cuda.empty_cache()` in the loop. If the allocator retries because memory is
    nearly full, use smaller micro-batches or recomputation, or avoid fragmentation with
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Allocate pinned CPU memory once.

    ## When it is wrong
    The first steps of a job allocate. A job with new tensor shapes in each step allocates for a
    long time; `expandable_segments` helps there, too.

    ## Sources
    PyTorch documentation, "CUDA semantics" (memory management). Formula sheet, "Measured from
    traces".
    """
    step = times.mean_step()
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no runtime calls to judge by: the cause of idle time is unknown"
        )
    calls = [pause for pause in idle.pauses if pause.kind == "memory"]
    cost = sum(pause.idle_ns_per_step for pause in calls)
    if not calls or step.ratio(cost) < limits["idle_ratio"]:
        return
    count = sum(pause.count_per_step for pause in calls)
    worst = calls[0]
    yield Draft(
        headline=f"The GPU idles {step.part(cost)} while the CPU allocates and frees its memory",
        message=(
            f"{step.amount(cost)}: {count:.1f} calls per {step.word}, most of the time in "
            f"{worst.name}{f' ({worst.caller})' if worst.caller else ''}."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all.idle_pause_ns"),
        without=f"pause {MEMORY}",
    )
