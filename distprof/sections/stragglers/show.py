"""Which ranks make the others wait, how long and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.escape import fitting, short_ranks
from distprof.sections.parts import Part, amount_text, each_window, window_word
from distprof.sections.shares import latest_by_chance
from distprof.sections.stragglers import RankStraggler, StragglerSet, words
from distprof.sections.table import Column, TableView, counted, rows_table
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import capitalized, format_duration, format_ratio, name_ranks, verb

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

MAX_STRAGGLERS_SHOWN = 5

SHORT = 12
"""``(ranks - 1) * (steps - 1)`` below which a recording may be too short to prove that a rank is
slow: LEAST_FREEDOM of :mod:`distprof.sections.stragglers.slowness`."""


def culprits(report: Report) -> tuple[RankStraggler, ...]:
    """Ranks that others wait for in a clear pattern, most expensive first.

    A rank is not blamed if other processes take its CPU, or if it is slow only while it is traced.
    """
    named = (
        rank
        for rank in report.stragglers.ranks
        if rank.pattern != StragglerPattern.NONE and rank.cause.is_own
    )
    return tuple(sorted(named, key=lambda r: -r.lost_ns_per_step))


def wait_words(report: Report, wait: Part) -> tuple[str, str]:
    """Verdict on a step dominated by waiting for late ranks: which ranks; then what to do."""
    share = f"{format_ratio(wait.ratio)} of {each_window(report)}"
    amount = amount_text(report, wait.ns)
    late = culprits(report)
    if not late or late[0].lost_ns_per_step < wait.ns / 2:
        whose = capitalized(_whose(report, late))
        return f"Ranks wait for each other for {share}", f"{amount}. {whose}"
    sets = report.stragglers.sets
    together = next((one for one in sets if late[0].rank in one.ranks), None)
    if together is not None and len(together.ranks) > 1:
        return _set_words(report, together)
    if len(late) > 1 and late[1].lost_ns_per_step > late[0].lost_ns_per_step / 2:
        ranks = short_ranks([r.rank for r in late], 24)
        who = fitting(f"Ranks {ranks} hold the others up: {share}", f"Stragglers take {share}")
        return who, f"{amount}. Find what these ranks have in common."
    first = late[0]
    share = f"{format_ratio(first.share_of_step_ratio)} of {each_window(report)}"
    action = words()["action"][first.cause]
    return f"Rank {first.rank} holds the others up: {share}", (
        f"They wait {format_duration(first.lost_ns_per_step)} for it. {action}"
    )


def _whose(report: Report, late: tuple[RankStraggler, ...]) -> str:
    """Who may cause the waiting if no named rank accounts for it: unproven is not absent."""
    suspect = None if late else _suspect(report)
    named = _named_elsewhere(report)
    if suspect is None and named is not None:
        return f"{name_ranks(named.ranks)} {verb(named.ranks, 'are')} named below ({named.code})."
    if suspect is None:
        return "No single rank is responsible. Even out the work between ranks."
    share = format_ratio(suspect.lost_ns_per_step / report.stragglers.lost_ns_per_step)
    if not latest_by_chance(report.stragglers, suspect.rank):
        return (
            f"Rank {suspect.rank} causes {share} of that time by arriving last: look at what it "
            "does before its collectives."
        )
    steps = counted(report.waterfall.num_steps, "step")
    return (
        f"Rank {suspect.rank} causes {share} of that time by arriving last, but {steps} cannot "
        "rule out chance. Trace more steps."
    )


def _named_elsewhere(report: Report) -> Finding | None:
    """The most expensive finding that names at most half of the ranks: input, pauses, a stage."""
    half = len(report.run.ranks) / 2
    named = (one for one in report.findings if one.cost_ns_per_step and 0 < len(one.ranks) <= half)
    return max(named, key=lambda one: one.cost_ns_per_step or 0, default=None)


def _suspect(report: Report) -> RankStraggler | None:
    """The rank that costs far more than its share, if too few steps can prove no pattern."""
    ranks = report.stragglers.ranks
    first = max(ranks, key=lambda rank: rank.lost_ns_per_step, default=None)
    if first is None or not report.waterfall.num_steps or first.pattern != StragglerPattern.NONE:
        return None
    is_short = (len(ranks) - 1) * (report.waterfall.num_steps - 1) < SHORT
    min_lost_ns = max(0.5, 1.5 / len(ranks)) * report.stragglers.lost_ns_per_step
    return first if is_short and first.lost_ns_per_step >= min_lost_ns > 0 else None


def _set_words(report: Report, slow: StragglerSet) -> tuple[str, str]:
    """Verdict for ranks that are slow together: who, what they share, and why."""
    how = {
        StragglerPattern.ROTATING: "are slow alternately, each in different steps",
        StragglerPattern.TRANSIENT: "are slow in some steps",
    }.get(slow.pattern, "are slow together")
    shared = f" ({slow.name})" if slow.name else ""
    cause = slow.cause.value.replace("_", " ")
    because = f" Cause: {cause}." if slow.cause != StragglerCause.UNKNOWN else ""
    share = f"{format_ratio(slow.share_of_step_ratio)} of {each_window(report)}"
    ranks = short_ranks(slow.ranks, 24)
    headline = fitting(
        f"Ranks {ranks}{shared} hold the others up: {share}",
        f"Ranks {ranks} hold the others up: {share}",
        f"Slow ranks hold the others up: {share}",
    )
    amount = format_duration(slow.lost_ns_per_step)
    return headline, f"They {how}: the others wait {amount} for them.{because}"


_BY_RANK = "stragglers.ranks"  # Evidence of findings that say how long others wait for ranks


def culprit_sentence(report: Report) -> str:
    """Which rank costs the others most, how regularly, and why."""
    late = culprits(report)
    if not late:
        return ""
    first = late[0]
    how_often = "makes the others wait"
    if first.late_ratio is not None:
        often = "every collective"
        if first.late_ratio < 1:
            often = f"{format_ratio(first.late_ratio)} of collectives"
        how_often = f"is last to arrive at {often}"
    because = "cause not visible in the traces"
    if first.cause != StragglerCause.UNKNOWN:
        sure = first.cause_confidence
        confidence = f" (confidence {100 * sure:.0f} %)" if sure else ""
        because = f"cause: {first.cause.value.replace('_', ' ')}{confidence}"
    once = report.waterfall.num_steps == 1
    pattern = "one step cannot show whether it lasts" if once else f"{first.pattern.value} pattern"
    cost = ""
    # a finding may have its cost from one step on, or more precisely
    if not any((first.rank,) == f.ranks and _BY_RANK in f.evidence for f in report.findings):
        amount = format_duration(first.lost_ns_per_step)
        cost = f" and costs a typical other rank {amount} per {window_word(report)}"
    return (
        f"Rank {first.rank} {how_often}{cost}: "
        f"{pattern} (confidence {100 * first.confidence:.0f} %), {because}."
    )


def stragglers_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks by their cost to the others; by default only ranks with a pattern."""
    named = culprits(report)
    shown = report.stragglers.ranks if show_all else named[:MAX_STRAGGLERS_SHOWN]
    notes = [f"rank {r.rank}: {text}" for r in shown for text in r.evidence]
    if not show_all and len(named) > len(shown):
        more = counted(len(named) - len(shown), "more rank")
        ranks = short_ranks([r.rank for r in named[len(shown) :]])
        notes.append(f"and {more}: {ranks}")
    return rows_table(
        "Stragglers",
        (
            Column("rank", "rank", left=True),
            Column("lost", "lost_ns_per_step"),
            Column("share", "share_of_step_ratio"),
            Column("last to arrive", "late_ratio"),
            Column("pattern", "pattern.value", left=True),
            Column("cause", lambda r: r.cause.value.replace("_", " "), left=True),
            Column("confidence", lambda r: f"{100 * r.confidence:.0f} %"),
        ),
        shown,
        caption=f"lost: exposed wait of a typical other rank per {window_word(report)}",
        notes=notes,
    )
