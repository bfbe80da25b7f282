"""Figures of a history: a metric over commits with intervals, and the commits that changed it."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.documents.html.blocks import EMPTY, Markup, Part, captioned, joined
from distprof.documents.html.chart import Chart, nice_ticks
from distprof.escape import shorten
from distprof.sections.table import counted
from distprof.units import capitalized
from distprof.verbs.gate.show import metric_text
from distprof.verbs.history import History, HistoryPoint, HistorySeries
from distprof.verbs.history.show import day, point_name, series_name, state_shown

_MOST_SERIES = 6
_MOST_POINTS = 400
"""Maximum number of points that fit into the width of the figure; the newest are drawn."""
_MOST_TICKS = 8
_MOST_NAMED = 8
_WIDEST = 2.0
"""Maximum ratio of the upper end of a meaningful interval to the value; two repeats exceed it."""
_MARGIN = 0.08
_KINDS = {"regressed": "worse", "improved": "better", "open": "open"}


def figures(history: History) -> Iterator[Part]:
    """A curve for each series, those with the newest runs first."""
    drawn = [series for series in history.series if series.points][:_MOST_SERIES]
    content = joined(series_figure(history, series) for series in drawn)
    title = f"{capitalized(history.label)} over commits"
    yield Part(anchor="over-time", title=title, content=content)


def series_figure(history: History, series: HistorySeries) -> Markup:
    """The points of one series in order of time; empty without points."""
    points = series.points[-_MOST_POINTS:]
    if not points:
        return EMPTY
    ends = [value for point in points for value in (point.value, *(_interval(point) or ()))]
    least, most = min(ends), max(ends)
    room = _MARGIN * ((most - least) or abs(most) or 1)
    chart = Chart(left=-0.5, right=len(points) - 0.5, least=least - room, most=most + room)
    changes = [i for i, point in enumerate(points) if point.state in ("regressed", "improved")]
    named = [f"{points[i].state} at {point_name(points[i])}" for i in changes[-_MOST_NAMED:]]
    label = f"{history.label} over {counted(len(points), 'point')}, "
    label += ", ".join(named) or "no change"
    every = -(-len(points) // _MOST_TICKS)
    places = range(len(points) - 1, -1, -every)
    ticks = nice_ticks(chart.least, chart.most, 5)
    drawn = chart.drawn(
        chart.axes(
            ((i, shorten(point_name(points[i]), 11)) for i in places),
            ((value, metric_text(value, history.unit)) for value in ticks if value >= 0),
            "commits by time",
        ),
        chart.curve([(i, point.value) for i, point in enumerate(points)], "thin"),
        *(
            chart.flag(i, name, _KINDS[points[i].state])
            for i, name in zip(changes[-_MOST_NAMED:], named, strict=True)
        ),
        *(_point(chart, i, point, history) for i, point in enumerate(points)),
        label=label,
    )
    name = shorten(series_name(series.fingerprint), 120)
    text = (
        f"{name}: median of the repeats at each commit with the 95 % interval of its centre. "
        f"{capitalized(history.better)} is better. A dashed line marks a change beyond chance and "
        "tolerance. The axis does not begin at 0."
    )
    left_out = len(series.points) - len(points)
    return captioned(
        f"{text} {counted(left_out, 'earlier point')} not drawn." if left_out > 0 else text, drawn
    )


def _interval(point: HistoryPoint) -> tuple[float, float] | None:
    """The interval of the centre of a point; None if it is too wide to be meaningful."""
    if point.low is None or point.high is None or point.high > _WIDEST * point.value:
        return None
    return point.low, point.high


def _point(chart: Chart, at: int, point: HistoryPoint, history: History) -> Markup:
    value, found = metric_text(point.value, history.unit), _interval(point)
    text = f"{point_name(point)} ({day(point.created_ns)}): {value}"
    whisker = EMPTY
    if found is not None:
        whisker = chart.whisker(at, *found)
        text += ", 95 % " + " to ".join(metric_text(end, history.unit) for end in found)
    state = state_shown(history, point)
    kind = _KINDS.get(state, "")
    dot = chart.dot(
        (at, point.value), f"{text}{state and f', {state}'}", kind, radius=6 if kind else 3.5
    )
    return joined((whisker, dot))


FIGURES = {History: figures}
