"""Rules about links, and about slow collectives in training logs and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.shares import WIDER_TRANSFER
from distprof.sections.stragglers import (
    EXPLAINS,
    MessageRank,
    MessagesResult,
    SlowLink,
    StragglersResult,
)
from distprof.sections.summaries import CollectiveSummaryResult
from distprof.sections.training_log import MIN_RECURRING, TrainingLogResult
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import fold_ranks, format_bytes, format_duration, format_ratio, name_ranks


@rule(
    "STR104",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that a rank may idle longer than its peers"),
    chance=Limit(0.01, "chance that identical ranks differ this much"),
)
def messages_held_up(
    messages: MessagesResult,
    stragglers: StragglersResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """In each step one rank leaves its GPU idle longer than its peers, and others wait for its
    messages.
    """
    step = messages.step_ns
    if not step:
        return  # no messages
    queued = pauses.queued_ns if idle.is_cpu else {}
    explained = {  # by other rules
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is not StragglerCause.UNKNOWN
    }
    late = [
        rank
        for rank in messages.ranks
        if rank.rank not in explained
        and rank.chance <= limits["chance"]
        and _cost_ns(rank, messages) >= limits["min_step_ratio"] * step
    ]
    beyond = {rank.rank: _beyond_peers(rank.rank, queued, messages) for rank in late}
    sure = [rank for rank in late if beyond[rank.rank] < EXPLAINS * rank.late_ns_per_step]
    if late and not sure:
        worst = max(late, key=lambda rank: rank.late_ns_per_step)
        raise InsufficientEvidenceError(
            f"rank {worst.rank} holds up messages {format_duration(worst.late_ns_per_step)} longer "
            f"than its peers, but waits {format_duration(beyond[worst.rank])} longer than they do "
            "for a free CPU"
        )
    for rank in sure:
        late_ns = rank.late_ns_per_step
        yield Draft(
            headline=(
                f"Rank {rank.rank} holds messages up: its CPU is {format_ratio(late_ns / step)} of "
                "each step late"
            ),
            message=(
                f"It idles {format_duration(late_ns)} longer than its peers in each step, and "
                "keeps others waiting for its messages."
            ),
            cost_ns_per_step=_cost_ns(rank, messages),
            confidence=Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("messages.ranks",),
            without=f"rank {rank.rank}",
        )


def _beyond_peers(rank: int, queued: Mapping[int, int], messages: MessagesResult) -> float:
    """Wait of a rank for a CPU above the median of its peers', per step, ns."""
    others = [queued.get(other.rank, 0) for other in messages.ranks if other.rank != rank]
    return queued.get(rank, 0) - median(others or [0])


def _cost_ns(rank: MessageRank, messages: MessagesResult) -> int:
    """Lateness of the rank, but at most the longest wait of another rank."""
    waits = [other.wait_ns_per_step for other in messages.ranks if other is not rank]
    return min(rank.late_ns_per_step, max(waits, default=0))


@rule(
    "STR107",
    Severity.WARNING,
    min_step_ratio=Limit(0.02, "share of the step that slow transfers may take"),
    slower_ratio=Limit(1.2, "transfer relative to the other groups' that is tolerated"),
)
def slow_link(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """The collectives of some ranks take longer to transfer than the same collectives of other
    groups, in all steps or for a time. Or those of all groups of an axis take longer in some steps
    than in others.
    """
    if not collectives.classes:
        return
    slow = [
        link
        for link in stragglers.links
        if link.share_of_step_ratio >= limits["min_step_ratio"]
        and link.ratio >= limits["slower_ratio"]
    ]
    sure = [link for link in slow if not (idle.is_cpu and _may_be_the_cpu(link, pauses))]
    if slow and not sure:
        raise InsufficientEvidenceError(
            f"transfers of {name_ranks(slow[0].ranks)} take longer, but CPU ranks move data "
            "themselves: they wait at least as long for a free CPU, are slow in one step only, or "
            "are slow at times without a network between them"
        )
    for link in sure:
        steps = fold_ranks(link.steps).replace(",", ", ")
        when = f" in {len(link.steps)} of {link.num_steps} steps ({steps})" if link.steps else ""
        size = "" if link.bytes is None else f"{format_bytes(link.bytes)}, "
        others = f"{link.num_compared} other group{'s' if link.num_compared > 1 else ''}"
        if not link.num_compared:
            others = "the other steps"
        whose = "Their" if len(link.ranks) > 1 else "Its"
        yield Draft(
            headline=(
                f"Slow transfers of {few_ranks(link.ranks)} cost "
                f"{format_ratio(link.share_of_step_ratio)} of each step"
            ),
            message=(
                f"{whose} {link.kind} ({size}{link.axis}) takes "
                f"{format_duration(link.transfer_ns)}{when}, "
                f"{link.ratio:.2f} times as long as in {others}."
            ),
            fix=_link_fix(link),
            cost_ns_per_step=link.lost_ns_per_step,
            ranks=link.ranks if link.num_compared else (),
            steps=tuple(link.steps),
            evidence=("stragglers.links",),
            without=link.scenario,
            explains=WIDER_TRANSFER,
        )


def _link_fix(link: SlowLink) -> str:
    if not link.num_compared:
        return advice("slow-link", "at-times")
    nodes = f" ({', '.join(link.nodes)})" if 1 < len(link.nodes) <= 4 else ""
    return advice("slow-link", "always", ranks=few_ranks(link.ranks), nodes=nodes)


def _may_be_the_cpu(link: SlowLink, pauses: PausesResult) -> bool:
    """Whether a rank waits, or its unrecorded threads may wait, as long for a CPU as it loses."""
    waits = (ns for rank, ns in pauses.queued_ns.items() if rank in link.ranks)
    is_local = not link.num_compared and len(link.nodes) < 2
    return is_local or len(link.steps) == 1 or max(waits, default=0) >= link.lost_ns_per_step


MAX_NAMED = 5
_WHOLE = 0.97  # Share of an iteration from which a timer is all of it


@rule(
    "STR108",
    Severity.WARNING,
    excess_ratio=Limit(0.02, "share of the training time that slow iterations may add"),
    few_ratio=Limit(0.2, "the same of fewer than five that do not recur regularly"),
)
def slow_iterations(log: TrainingLogResult, limits: Limits) -> Iterator[Draft]:
    """The training program's log shows iterations that take far longer than their neighbours."""
    if not log.slow_excess_ns or not log.mean_ns:
        return
    share = log.slow_excess_ns / log.mean_ns
    if not log.num_slow:
        printed = format_duration(log.mean_ns - log.slow_excess_ns)
        yield Draft(
            headline=f"{format_ratio(share)} of the time passes outside of the printed iterations",
            message=(
                f"Printed times and waiting for input explain {printed} of the "
                f"{format_duration(log.mean_ns)} that an iteration takes on average."
            ),
            fix=advice("slow-iterations", "unprinted"),
            cost_ns_per_step=log.slow_excess_ns,
            evidence=("training_log.slow_excess_ns",),
        )
        return
    # As lengths of answers do:
    varies = MIN_RECURRING <= log.num_slow > log.num_steady / 6 and not log.slow_period
    recur = log.num_slow >= MIN_RECURRING or log.slow_period
    if varies or share <= limits["excess_ratio" if recur else "few_ratio"]:
        return
    often = f", every {log.slow_period:,} {log.unit}s" if log.slow_period else ""
    slowest = log.slowest[: 0 if log.origin.endswith("dates its epochs") else MAX_NAMED]
    named = tuple(one.iteration for one in slowest if one.iteration is not None)
    yield Draft(
        headline=f"Single slow {log.unit}s add {format_ratio(share)} to the training time",
        message=(
            f"{log.num_slow:,} of {log.num_steady:,} {log.unit}s took more than 1.2 times as long "
            f"as their neighbours{often}, the longest {format_duration(log.max_ns)} instead of "
            f"{format_duration(log.median_ns)}."
        ),
        fix=_fix(log, named),
        cost_ns_per_step=log.slow_excess_ns,
        steps=named,
        evidence=("training_log.slowest",),
    )


def _fix(log: TrainingLogResult, named: tuple[int, ...]) -> str:
    rare = [one for one in log.timers if one.ratio and one.num_reports <= (log.num_slow or 0)]
    spent = sum(one.mean_ns * one.num_reports for one in rare)
    if 2 * spent > (log.slow_excess_ns or 0) * log.num_steady:  # most of it
        return advice("slow-iterations", "parts", parts=" and ".join(t.name for t in rare[:2]))
    if log.slow_period:
        return advice("slow-iterations", "periodic", period=log.slow_period, unit=log.unit)
    at = f" at {log.unit}s such as {', '.join(f'{n:,}' for n in named)}" if named else ""
    return f"Look at input, the length of sequences, the file system and recompilation{at}."


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
        fix=advice("late-rank-by-summary", late=late),
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
    """
    slow = log.slow_span
    if slow is None or not log.mean_ns or slow.excess_ns <= limits["excess_ratio"] * log.mean_ns:
        return
    times = f"{slow.duration_ns / slow.usual_ns:.2f} times"
    now, usual = format_duration(slow.duration_ns), format_duration(slow.usual_ns)
    kind = "at-once" if slow.last_iteration is None else "for-a-time"
    those = f"{log.unit.capitalize()}s"
    headline = f"{those} take {times} as long {slow.when(log.unit, log.iterations_per_report)}"
    message = f"They take {now}, the others {usual}."
    if slow.is_gradual:
        kind, message = "gradual", f"They take {usual} at first and {now} later."
        headline = f"{those} get longer and longer, to {times} the first"
    most = (t for t in log.timers if 2 * (t.mean_ns - slow.usual_ns) > slow.excess_ns)
    part = next((timer for timer in most if (timer.ratio or 1) < _WHOLE), None)
    kind = kind if part is None else "input" if part == log.input_timer else "part"
    yield Draft(
        headline=headline,
        message=message,
        fix=advice("slower-iterations", kind, part=part and part.name),
        cost_ns_per_step=slow.excess_ns,
        steps=() if slow.first_iteration is None else (slow.first_iteration,),
        evidence=("training_log.slow_span",),
    )
