"""Rules about training logs and tables."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.summaries import CollectiveSummaryResult
from distprof.sections.training_log import MIN_RECURRING, SlowPeriod, TrainingLogResult
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_duration, format_ratio

MAX_NAMED = 5


@rule(
    "STR108",
    Severity.WARNING,
    excess_ratio=Limit(0.02, "share of the training time that slow iterations may add"),
)
def slow_iterations(log: TrainingLogResult, limits: Limits) -> Iterator[Draft]:
    """The training program's log shows iterations that take far longer than their neighbours.

    ## Why it costs time
    If every twentieth iteration takes half as long again, training takes 2.5 % longer. A trace of a
    few steps hardly ever contains one, and a median hides all of them.

    ## Evidence needed
    A log of the training program (`distprof analyze train.log`, or `--with train.log`) with a time
    for every single iteration, or for every n-th. Logs that average many iterations hide slow ones.

    ## How the cost is computed
    Iterations count as slow from 1.2 times the median of their neighbours (about a hundred
    iterations). The cost is their time above that median, divided by the number of all iterations.

    ## How to fix
    If they are periodic, find what the program does at that period (checkpoints, evaluation,
    logging, garbage collection) and move it off the training thread. If not, look at input, the
    file system and the network at the named iterations, and record sensors and logs of the
    machines.

    ## When it is wrong
    Iterations with more work on purpose (longer sequences, more micro-batches) count as slow too if
    their neighbours are shorter.

    ## Sources
    Formula sheet, "Measured from traces" (straggler).
    """
    if not log.num_slow or not log.slow_excess_ns or not log.mean_ns:
        return
    share = log.slow_excess_ns / log.mean_ns
    if log.num_slow < MIN_RECURRING or share <= limits["excess_ratio"]:
        return
    often = f", every {log.slow_period:,} iterations" if log.slow_period else ""
    named = tuple(one.iteration for one in log.slowest[:MAX_NAMED] if one.iteration is not None)
    yield Draft(
        headline=f"Single slow iterations add {format_ratio(share)} to the training time",
        message=(
            f"{log.num_slow:,} of {log.num_steady:,} iterations take more than 1.2 times as long "
            f"as their neighbours{often}, the longest {format_duration(log.max_ns)} instead of "
            f"{format_duration(log.median_ns)}."
        ),
        fix=_fix(log, named),
        cost_ns_per_step=log.slow_excess_ns,
        steps=named,
        evidence=("training_log.slowest",),
    )


def _fix(log: TrainingLogResult, named: tuple[int, ...]) -> str:
    if log.slow_period:
        return (
            f"Look at what the program does every {log.slow_period:,} iterations (checkpoints, "
            "evaluation, garbage collection), and move it off the training thread."
        )
    where = ", ".join(f"{number:,}" for number in named)
    at = f" at iterations such as {where}" if where else ""
    return f"Look at input, the file system and the network{at}. Record sensors of the machines."


@rule(
    "STR109",
    Severity.WARNING,
    costs_time=False,
    wait_ratio=Limit(0.2, "share of the time in collectives that may be waiting"),
    blamed_ratio=Limit(0.8, "share of all waiting that must be for one rank"),
)
def late_rank_by_summary(
    summary: CollectiveSummaryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """A table of collective durations shows that one rank is last to arrive at nearly every
    collective in which the others wait.

    ## Why it costs time
    A collective ends after its last member arrives. Until then all others wait, however fast the
    links are, and the late rank sets the length of the step.

    ## Evidence needed
    A table of collectives by rank (`distprof analyze nccl_summary.csv`, or `--with`), with a row
    for every member of a group. If there are traces, the other rules of this family know more, and
    this one stays silent.

    ## How the cost is computed
    Not computed: the table has no steps. The message gives the mean wait per call: the mean
    duration on the other ranks less that on the late rank.

    ## How to fix
    Look at what the late rank does before its collectives: its clocks and temperature, work that
    only it does (logging, checkpoints, evaluation), its share of the batch. A trace of all ranks
    shows the cause.

    ## When it is wrong
    A rank is not slow if its kernels start late for lack of streams, or work on a copy of the data
    that the others still have to fetch. Means hide whether it is always late or sometimes very
    late.

    ## Sources
    Formula sheet, "Measured from traces" (straggler). The rank with the shortest kernel arrives
    last.
    """
    late, blamed, waiting = summary.late_rank, summary.blamed_ratio, summary.wait_ratio
    if late is None or blamed is None or waiting is None or stragglers.ranks:
        return
    if waiting <= limits["wait_ratio"] or blamed < limits["blamed_ratio"]:
        return
    worst = next((one for one in summary.classes if one.last_rank == late), None)
    call = ""
    if worst is not None and worst.num_ranks >= 2:
        size = f" of {format_bytes(worst.num_bytes)}" if worst.num_bytes is not None else ""
        wait = format_duration(worst.wait_ns * worst.num_ranks / (worst.num_ranks - 1))
        call = f" In the average {worst.kind}{size}, the others wait {wait} for it."
    yield Draft(
        headline=(
            f"Rank {late} holds the others up: {format_ratio(blamed)} of all waiting is for it"
        ),
        message=f"{format_ratio(waiting)} of the time in collectives is waiting.{call}",
        fix=(
            f"Look at what rank {late} does before its collectives: clocks, work that only it "
            "does, its share of the batch. A trace of all ranks shows which."
        ),
        confidence=Confidence.INFERRED,
        ranks=(late,),
        evidence=("collective_summary.classes", "collective_summary.ranks"),
    )


@rule(
    "STR113",
    Severity.WARNING,
    excess_ratio=Limit(0.02, "share of the training time that it may add"),
)
def slower_iterations(log: TrainingLogResult, limits: Limits) -> Iterator[Draft]:
    """From some iteration on, the training program's log shows iterations that take longer than
    before, for a while or to the end.

    ## Why it costs time
    Nothing in the program announces that throughput has fallen. A mean over the whole training
    hides it, and so does a trace of the wrong steps.

    ## Evidence needed
    A log of the training program (`distprof analyze train.log`, or `--with train.log`) with at
    least thirty reports.

    ## How the cost is computed
    Reports are compared in blocks of at least five, by their medians. A row of three slow blocks or
    more, each at least 1.1 times the lower quartile of all, is one slow span if its reports are
    longer than the others in 90 % of all pairs. The cost is their time above the median of the
    others, divided by the number of all iterations.

    ## How to fix
    Look at what changed at that iteration: a restart on other nodes, a GPU that began to throttle,
    a neighbour on the network or the file system, longer sequences, a cache that filled up. If
    iterations get longer little by little, look for growing state: fragmented memory, lists that
    keep tensors, logs, a data set read from ever slower storage.

    ## When it is wrong
    Programs that raise the batch or the sequence length during training have longer iterations on
    purpose. Iterations that get longer in several steps, and never shorter, are taken for that.

    ## Sources
    Formula sheet, "Measured from traces" (straggler).
    """
    slow = log.slow_span
    if slow is None or not log.mean_ns or slow.excess_ns <= limits["excess_ratio"] * log.mean_ns:
        return
    yield Draft(
        headline=_headline(slow),
        message=_message(slow),
        fix=_slower_iterations_fix(slow),
        cost_ns_per_step=slow.excess_ns,
        steps=() if slow.first_iteration is None else (slow.first_iteration,),
        evidence=("training_log.slow_span",),
    )


def _headline(slow: SlowPeriod) -> str:
    times = f"{slow.duration_ns / max(slow.usual_ns, 1):.2f} times"
    if slow.is_gradual:
        return f"Iterations get longer little by little, to {times} the first"
    since = "for a time"
    if slow.last_iteration is None and slow.first_iteration is not None:
        since = f"from iteration {slow.first_iteration:,} on"
    return f"Iterations take {times} as long {since}"


def _message(slow: SlowPeriod) -> str:
    now, usual = format_duration(slow.duration_ns), format_duration(slow.usual_ns)
    if slow.is_gradual:
        return f"They take {usual} at first and {now} later."
    first, last = slow.first_iteration, slow.last_iteration
    when = f" in {slow.num_reports:,} reports in a row" if first is None else ""
    if first is not None and last is not None:
        when = f" from iteration {first:,} to {last:,}"
    return f"They take {now}{when}, the others {usual}."


def _slower_iterations_fix(slow: SlowPeriod) -> str:
    if slow.is_gradual:
        return (
            "Look for state that grows with each iteration: lists that keep tensors, fragmented "
            "memory, logs and metrics, slower storage."
        )
    at = "" if slow.first_iteration is None else f" at iteration {slow.first_iteration:,}"
    return (
        f"Look at what changed{at}: a restart on other nodes, a GPU that throttles, other jobs on "
        "the network or the file system, longer sequences."
    )
