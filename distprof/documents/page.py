"""The page: what a result says to people, before it is written in any format.

From top to bottom: the headline and its evidence, the step, what to do about it (the plan and other
findings, each once), where it comes from (origin, facts, cautions), further sentences and listings,
tables, remarks, and the commands to run next. A format leaves out what it has no room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from distprof.rules.base import Finding
from distprof.sections.parts import mean_span_ns, parts_of, window_word
from distprof.sections.picture import (
    COMPUTATION,
    COPY,
    IDLE,
    MESSAGE_WAIT,
    UNSPLIT,
    WAIT,
    DrawnStep,
    pieces_of,
)
from distprof.sections.report import Report
from distprof.sections.table import TableView
from distprof.units import format_duration, format_ratio


class Group(msgspec.Struct, frozen=True):
    """Parts of the step that are drawn alike."""

    label: str
    word: str  # Its label where there is little room.
    glyph: str  # Character on a terminal.
    style: str  # Colour on a terminal.
    parts: tuple[str, ...]  # Keys of its parts; empty for all kinds of idle time.

    @property
    def key(self) -> str:
        """Its class in HTML, without ``k-``."""
        return self.parts[0] if self.parts else "idle"


GROUPS = (
    Group("computation", "compute", "█", "green", ("computation",)),
    Group("exposed transfer", "transfer", "▓", "blue", ("exposed_transfer",)),
    Group("waiting for late ranks", "waiting", "▒", "red", ("exposed_wait", "exposed_p2p_wait")),
    Group("exposed communication", "communication", "▞", "blue", ("exposed_comm_unsplit",)),
    Group("exposed copies", "copies", "▚", "magenta", ("exposed_copy",)),
    Group("idle", "idle", "░", "yellow", ()),
)


class Share(msgspec.Struct, frozen=True):
    """One piece of the bar."""

    group: Group
    ratio: float  # Share of the step, 0 to 1.

    @property
    def text(self) -> str:
        """For example ``idle 4.10 %``."""
        return f"{self.group.label} {format_ratio(self.ratio)}"

    @property
    def short(self) -> str:
        """The same in few characters."""
        return f"{self.group.word} {format_ratio(self.ratio)}"


class Strip(msgspec.Struct, frozen=True):
    """A rank's step as its parts follow in time."""

    rank: int
    pieces: tuple[tuple[float, float, Group], ...]  # Start and end, shares of the width, and group.

    def cells(self, width: int) -> Iterator[Group | None]:
        """The group that fills most of each of ``width`` cells; None outside of the step."""
        filled: list[dict[Group, float]] = [{} for _ in range(width)]
        for start, end, group in self.pieces:
            for cell in range(int(start * width), min(width, math.ceil(end * width))):
                inside = min(end * width, cell + 1) - max(start * width, cell)
                filled[cell][group] = filled[cell].get(group, 0.0) + inside
        return (max(cell, key=lambda group: cell[group], default=None) for cell in filled)


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step."""

    # One step of the first rank and of the worst, as its parts follow in time; empty if unknown.
    strips: tuple[Strip, ...] = ()
    drawn: str = ""  # Which step the strips show, for example ``step 7, 2.41 s``; empty for any.
    length: str  # For example ``22.3 ms per step``.
    shares: tuple[Share, ...]  # Its groups, without empty ones, in the order of :data:`GROUPS`.


def step_bar(report: Report) -> StepBar | None:
    """The mean step of a report; None if nothing was measured."""
    parts = parts_of(report)
    if not parts:
        return None
    shares = (
        Share(group, sum(part.ratio for part in parts if group_of(part.key) is group))
        for group in GROUPS
    )
    step = next(iter(drawn_steps(report)), None)
    return StepBar(
        strips=() if step is None else _strips(report, step),
        drawn="" if step is None else _which(report, step),
        length=f"{format_duration(mean_span_ns(report))} per {window_word(report)}",
        shares=tuple(share for share in shares if share.ratio > 0),
    )


def _which(report: Report, step: DrawnStep) -> str:
    """Which step is drawn, if the first finding is about some steps; else empty."""
    told = report.findings[0].steps if report.findings else ()
    is_logged = bool(report.findings) and "step_log.stalls" in report.findings[0].evidence
    if step.step is None or not (is_logged or 0 < len(told) < report.run.num_steps):
        return ""
    length = format_duration(step.mean_ns) if step.step in told else "a usual one"
    return f"step {step.step}, {length}"


_KINDS = {
    COMPUTATION: "computation",
    WAIT: "exposed_wait",
    MESSAGE_WAIT: "exposed_p2p_wait",
    UNSPLIT: "exposed_comm_unsplit",
    COPY: "exposed_copy",
    IDLE: "idle",
}
"""Class of a piece of a drawn step to its part of the step; all others are transfers."""


def drawn_steps(report: Report) -> tuple[DrawnStep, ...]:
    """The drawn steps, first that in which the first finding happens, if it is not in all."""
    told = report.findings[0].steps if report.findings else ()
    return tuple(sorted(report.picture.steps, key=lambda step: step.step not in told))


def _strips(report: Report, step: DrawnStep) -> tuple[Strip, ...]:
    """The drawn step of the rank that the headline is about or costs most, and of another."""
    if not step.ranks:
        return ()
    told = report.findings[0].ranks if report.findings else ()
    drawn = {one.rank: pieces_of(one.split) for one in step.ranks}
    lost = {one.rank: one.lost_ns_per_step for one in report.stragglers.ranks}
    named = {*told} if len(told) < len(report.run.ranks) else set()
    first, *others = sorted(drawn, key=lambda rank: (rank not in named, -lost.get(rank, 0), rank))

    def waits(rank: int) -> int:
        return sum(end - start for start, end, kind in drawn[rank] if kind == WAIT)

    # next to the worst rank the first, or if that is the worst, the one that waits longest
    other = min(drawn) if first != min(drawn) else max(others, key=waits, default=first)
    chosen = sorted({first, other})
    whole = max((pieces[-1][1] for pieces in drawn.values() if pieces), default=0) or 1
    return tuple(
        Strip(
            rank,
            tuple(
                (start / whole, end / whole, group_of(_KINDS.get(kind, "exposed_transfer")))
                for start, end, kind in drawn[rank]
            ),
        )
        for rank in chosen
    )


def group_of(part: str) -> Group:
    """The group of a part of the step; idle time for unknown ones."""
    return next((group for group in GROUPS if part in group.parts), GROUPS[-1])


MAX_TASKS = 5
"""Tasks that a text or Markdown shows, unless it is to show all."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences under a separate title."""

    title: str  # For example ``Next``.
    sentences: tuple[str, ...]  # In reading order.
    is_numbered: bool = False  # Whether they are steps to take in order.


class Priced(msgspec.Struct, frozen=True):
    """A finding, with its price as text."""

    finding: Finding
    cost: str = ""  # For example ``6.91 ms per step (31.0 %)``; empty if unknown.
    gain: str = ""  # For example ``saves 5.01 ms per step (30.0 %)``; empty if unknown.
    is_verdict: bool = False  # Whether the verdict already says what it says.

    @property
    def title(self) -> str:
        """Rule, severity and cost on one line."""
        cost = f", {self.cost}" if self.cost else ""
        return f"{self.finding.code} {self.finding.name}: {self.finding.severity.value}{cost}"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A repair of the plan with the findings that it removes, or one finding outside the plan."""

    found: tuple[Priced, ...]  # Most important first; empty if the findings are left out.
    change: str = ""  # The repair as a fact, for example ``rank 6 fixed``; empty outside the plan.
    # For example ``2.21 s → 1.92 s, saves 13.2 %``, for a finding its gain or cost; may be empty.
    effect: str = ""


class Limits(msgspec.Struct, frozen=True):
    """How much a short text has of its tasks."""

    tasks: int  # Number of tasks.
    lines: int  # Lines of each fix, except that of the first task; 0 for a line per task.


class ToDo(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, most important first: the plan and other findings, each once."""

    tasks: tuple[Task, ...] = ()
    found: tuple[Priced, ...] = ()  # All findings of the tasks, in the order of the report.
    promise: str = ""  # For example ``2.21 s → 1.38 s per step, simulated``; empty without a plan.
    basis: str = ""  # What the promise rests on, as its continuation; may be empty.
    num_left_out: int = 0  # Further tasks, which the page leaves out.
    limits: Limits | None = None  # Limits of a short text; None for all of each task.
    all_by: str = ""  # Command that shows all tasks, if nothing else on the page names it.

    @property
    def shown(self) -> tuple[Task, ...]:
        """The tasks of a text that is not to show all."""
        return self.tasks[: self.limits.tasks if self.limits else MAX_TASKS]

    @property
    def num_unseen(self) -> int:
        """Number of tasks that such a text leaves out."""
        return len(self.tasks) - len(self.shown) + self.num_left_out


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One result for people."""

    verdict: str  # The headline: the result in one sentence, of a report in at most 80 characters.
    detail: str = ""  # The evidence for it, one or two sentences; empty for none.
    to_do: ToDo | None = None  # What to do about it; None for results without ranked findings.
    origin: str = ""  # Where the result comes from, half a sentence; empty for none.
    facts: tuple[str, ...] = ()  # Additions to the origin, one paragraph each.
    cautions: tuple[str, ...] = ()  # What a reader must know before any number.
    step: StepBar | None = None  # The mean step, drawn as a bar.
    sentences: tuple[str, ...] = ()  # Further results, most important first.
    points: tuple[str, ...] = ()  # Like ``sentences``, but each in a separate block.
    listings: tuple[Listing, ...] = ()  # Sentences under titles.
    remarked: tuple[Priced, ...] = ()  # Findings that are remarks on the result, not the answer.
    tables: tuple[TableView, ...] = ()  # In reading order.
    # Whether tables are details, which formats fold if they can, and the brief form leaves out.
    has_folded_tables: bool = False
    has_captions: bool = True  # Whether Markdown also shows the captions of tables.
    no_tables: str = ""  # Why the tables that were asked for are missing, in the text.
    remarks: tuple[str, ...] = ()  # Sentences at the end.
    remarks_title: str = ""  # Title of the remarks, for example ``Assumed``; empty for none.
    unknown: tuple[str, ...] = ()  # What could not be found out; only in the brief form.
    about: tuple[str, ...] = ()  # Sentences on the file itself; only in HTML.
    commands: tuple[tuple[str, str], ...] = ()  # Commands to run next, each with its purpose.
