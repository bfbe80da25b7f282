"""The mean step as a bar of up to six groups, each drawn the same way everywhere."""

from __future__ import annotations

import msgspec

from distprof.sections.parts import mean_span_ns, parts_of, window_word
from distprof.sections.report import Report
from distprof.units import format_duration, format_ratio


class Group(msgspec.Struct, frozen=True):
    """Parts of the step that are drawn alike."""

    label: str
    glyph: str  # Character on a terminal.
    style: str  # Colour on a terminal.
    parts: tuple[str, ...]  # Keys of its parts; empty for all kinds of idle time.

    @property
    def key(self) -> str:
        """Its class in HTML, without ``k-``."""
        return self.parts[0] if self.parts else "idle"


GROUPS = (
    Group("computation", "█", "green", ("computation",)),
    Group("exposed transfer", "▓", "blue", ("exposed_transfer",)),
    Group("waiting for late ranks", "▒", "red", ("exposed_wait", "exposed_p2p_wait")),
    Group("exposed communication", "▞", "blue", ("exposed_comm_unsplit",)),
    Group("exposed copies", "▚", "magenta", ("exposed_copy",)),
    Group("idle", "░", "yellow", ()),
)


class Share(msgspec.Struct, frozen=True):
    """One piece of the bar."""

    group: Group
    ratio: float  # Share of the step, 0 to 1.

    @property
    def text(self) -> str:
        """For example ``idle 4.10 %``."""
        return f"{self.group.label} {format_ratio(self.ratio)}"


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step."""

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
    return StepBar(
        length=f"{format_duration(mean_span_ns(report))} per {window_word(report)}",
        shares=tuple(share for share in shares if share.ratio > 0),
    )


def group_of(part: str) -> Group:
    """The group of a part of the step; idle time for unknown ones."""
    return next((group for group in GROUPS if part in group.parts), GROUPS[-1])
