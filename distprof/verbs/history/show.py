"""Verdict, sentences and tables of a history, ready to render."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial

from distprof.artefacts.summary_file import Fingerprint
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.escape import shorten
from distprof.formats import RenderOptions
from distprof.sections.table import Column, Drawing, TableView, counted, present, rows_table
from distprof.units import NS_PER_S
from distprof.verbs.gate.show import amount, metric_text
from distprof.verbs.history import History, HistoryPoint, HistorySeries

_MARKED = ("regressed", "improved")

_STATES = {
    "regressed": "a regression",
    "improved": "an improvement",
    "open": "beyond the tolerance, but may be chance",
}

_MOST_SHOWN = 5
_COMMIT_DIGITS = 10
_MAX_NAME = 24
_MAX_JOB = 48
_WIDEST = 4.0  # maximum ratio of the ends of a meaningful interval; two repeats exceed it


def history_verdict(history: History) -> str:
    """The number of changes, and the state of the newest commit."""
    points = [point for series in history.series for point in series.points]
    if not points:
        return f"No run in this history has the metric {history.label}."
    counts = [sum(point.state == state for point in points) for state in _MARKED]
    commits = counted(len(points), "point")
    nouns = zip(counts, ("regression", "improvement"), strict=True)
    found = " and ".join(counted(count, noun) for count, noun in nouns if count)
    changes = found or "no change beyond chance and tolerance"
    if all(point.state == "first" for point in points):
        return f"{history.label}: {commits}, and no earlier point to compare with."
    if len(history.series) > 1:
        return f"{history.label}: {changes} in {commits} of {len(history.series)} series."
    return f"{history.label}: {changes} in {commits}. {_newest(history, points[-1])}"


def _newest(history: History, point: HistoryPoint) -> str:
    value = f"The newest, {point_name(point)}, has {metric_text(point.value, history.unit)}"
    if point.state == "first":
        return f"{value}. There is no earlier point."
    outcome = _STATES.get(state_shown(history, point), "no change seen, but too few repeats")
    if point.state == "passed":
        outcome = "within the tolerance"
    change = _change(history, point)
    return f"{value}, {change} compared with the points before it: {outcome}."


def state_shown(history: History, point: HistoryPoint) -> str:
    """``regressed``, ``improved``, or ``open`` for a change beyond tolerance that may be chance."""
    if point.state in _MARKED:
        return point.state
    if point.state != "inconclusive" or point.change is None:
        return ""
    middle = 0 if history.scale == "difference" else 1
    least, most = middle - history.tolerance, middle + history.tolerance
    return "" if least <= point.change <= most else "open"


def history_sentences(history: History) -> Iterator[str]:
    """The newest changes, open points, and missing data."""
    yield from _change_sentences(history)
    for series in history.series:
        last = series.points[-1] if series.points else None
        if last is not None and state_shown(history, last) == "open":
            more = last.needed_repeats
            needs = f" {counted(more, 'more repeat')} would settle it." if more else ""
            why = last.why[:1].lower() + last.why[1:].removesuffix(".")
            yield f"{point_name(last)} is open{_of(history, series)}: {why}.{needs}"
    lacking = sum(series.num_without for series in history.series)
    if lacking:
        yield f"{counted(lacking, 'run')} {'does' if lacking == 1 else 'do'} not have the metric."
    yield from history.notes


def _change_sentences(history: History) -> Iterator[str]:
    marked = [
        (point, before, series)
        for series in history.series
        for before, point in zip((None, *series.points), series.points, strict=False)
        if point.state in _MARKED
    ]
    for point, before, series in sorted(marked, key=lambda each: -each[0].created_ns)[:_MOST_SHOWN]:
        values = metric_text(point.value, history.unit)
        if before is not None:
            values = f"{metric_text(before.value, history.unit)} → {values}"
        later = f", confirmed by the {counted(point.num_after, 'point')} after it"
        after = later if point.num_after else ""
        software = f"; {', '.join(point.software)}" if point.software else ""
        yield (
            f"{point.state.capitalize()} at {point_name(point)} ({day(point.created_ns)})"
            f"{_of(history, series)}: {_change(history, point)}, {values}{after}{software}."
        )
    if len(marked) > _MOST_SHOWN:
        yield f"{counted(len(marked) - _MOST_SHOWN, 'earlier change')}: see the tables."


def _of(history: History, series: HistorySeries) -> str:
    return f" in {series_name(series.fingerprint)}" if len(history.series) > 1 else ""


def _series_table(history: History, series: HistorySeries) -> TableView | None:
    """One row per point, with a drawing of its value; None without points."""
    points, unit = series.points, history.unit
    values = [value for point in points for value in (point.value, *_narrow(point))] or [0.0]
    ends = min(values), max(values)

    def interval(point: HistoryPoint) -> str:
        return " to ".join(metric_text(end, unit) for end in _narrow(point))

    low, high = (metric_text(end, history.unit) for end in ends)
    notes = [f"drawn from {low} at the left to {high} at the right"] if low != high else []
    if any(state_shown(history, point) == "open" for point in series.points):
        notes.append("open: beyond the tolerance, but may be chance; more repeats would settle it")
    if series.num_earlier:
        notes.append(f"{counted(series.num_earlier, 'earlier point')} not shown: --last N or --all")
    return rows_table(
        series_name(series.fingerprint),
        (
            Column("commit", point_name, left=True),
            Column("date", lambda point: day(point.created_ns), left=True),
            Column("runs", "num_runs", form="id"),
            Column("median", lambda point: metric_text(point.value, unit)),
            Column("95 %", interval, left=True, wide_only=True),
            Column("change", partial(_short_change, history)),
            Column("", partial(state_shown, history), left=True),
            Column("", lambda point: _drawing(point, *ends), left=True),
        ),
        points,
        caption=f"{history.label} over commits, series {series.key}",
        notes=tuple(notes),
        strong=(i for i, point in enumerate(points) if point.state in _MARKED),
    )


def _narrow(point: HistoryPoint) -> tuple[float, ...]:
    """The ends of the interval of a point, if it is narrow enough to be meaningful."""
    low, high = point.low, point.high
    if low is None or high is None or high > _WIDEST * max(low, 0) + 1e-9:
        return ()
    return low, high


def _drawing(point: HistoryPoint, least: float, most: float) -> Drawing:
    """The median as a block, with its interval as dots around it."""

    def place(value: float, cells: int) -> int:
        share = (value - least) / (most - least) if most > least else 0.0
        return min(max(round(share * (cells - 1)), 0), cells - 1)

    def draw(room: int) -> str:
        line = [" "] * room
        if ends := [place(end, room) for end in _narrow(point)]:
            for cell in range(ends[0], ends[1] + 1):
                line[cell] = "·"
        line[place(point.value, room)] = "█" if point.state in _MARKED else "▒"
        return "".join(line).rstrip()

    return Drawing(draw)


def _short_change(history: History, point: HistoryPoint) -> str:
    if point.change is None:
        return ""
    unit = " %" if history.scale == "ratio" else " points"
    return f"{amount(point.change, history.scale)}{unit}"


def _change(history: History, point: HistoryPoint) -> str:
    """The change with its interval, for example ``+5.1 % (3.9 to 6.3)``."""
    low, high = point.change_low, point.change_high
    ends = ""
    if low is not None and high is not None:
        ends = f" ({amount(low, history.scale)} to {amount(high, history.scale)})"
    return f"{_short_change(history, point)}{ends}"


def series_name(print_: Fingerprint) -> str:
    """Name of a series in reports: job, ranks and device."""
    job = print_.strategy or print_.workload or "unknown job"
    ranks = counted(print_.world_size, "rank") if print_.world_size else ""
    where = " of ".join(part for part in (ranks, print_.device) if part)
    return " on ".join(part for part in (shorten(job, _MAX_JOB), where) if part)


def point_name(point: HistoryPoint) -> str:
    """First digits of the commit, with a plus if modified; or else the label, or the time."""
    if not point.commit:
        return shorten(point.label, _MAX_NAME) or _time(point.created_ns, "run of %H:%M")
    digits, _, dirty = point.commit.partition("+")
    return shorten(digits[:_COMMIT_DIGITS] + ("+" if dirty else ""), _MAX_NAME)


def day(ns: int) -> str:
    """The date (UTC); ``–`` for a time outside the calendar."""
    return _time(ns, "%Y-%m-%d")


def _time(ns: int, form: str) -> str:
    try:
        then = datetime.datetime.fromtimestamp(ns // NS_PER_S, tz=datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "–"
    return then.strftime(form)


def _history_page(history: History, _: RenderOptions) -> Page:
    return Page(
        verdict=history_verdict(history),
        origin=history.source,
        sentences=tuple(history_sentences(history)),
        tables=present(_series_table(history, series) for series in history.series),
    )


HISTORY = Document(
    kind=History,
    noun="a history",
    fix="make it again with: distprof history show --format json",
    page=_history_page,
)
