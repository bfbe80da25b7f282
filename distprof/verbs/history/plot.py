"""Plots a metric over commits to a file, with the commits that changed it. Extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distprof.documents.plots import new_figure, save_figure
from distprof.errors import InputError
from distprof.escape import plain
from distprof.verbs.history.show import metric_text, point_name, series_name, state_shown
from distprof.verbs.history.timeline import History, HistoryPoint, HistorySeries

_MOST_PANELS = 3
_MOST_TICKS = 12
_LINE = "#1b2631"
_COLORS = {"regressed": "#c0392b", "improved": "#27814d", "open": "#d4ac0d"}
_MOST_NAMED = 8


def draw_history(history: History, file: str) -> None:
    """Plot medians with their intervals over commits in order of time, with changes in colour.

    Raises:
        UsageError: If the extension is not a plot format.
        MissingExtraError: If matplotlib is not installed.
        InputError: If no run has the metric, or the file cannot be written.
    """
    drawn = [series for series in history.series if series.points][:_MOST_PANELS]
    if not drawn:
        raise InputError(
            file,
            expected="a history to draw",
            found=f"no run with the metric {history.label}",
            fix="choose another with --metric",
        )
    figure, panels = new_figure(file, panels=len(drawn))
    for panel, series in zip(panels, drawn, strict=True):
        _draw_series(panel, history, series)
    save_figure(figure, file)


def _draw_series(panel: Any, history: History, series: HistorySeries) -> None:
    points = series.points
    places = list(range(len(points)))
    values = [point.value for point in points]
    panel.plot(places, values, color="#aab7b8", linewidth=1, zorder=1)
    panel.errorbar(
        places, values, yerr=_errors(points), fmt="o", ms=4, color=_LINE, capsize=2, zorder=2
    )
    for state, color in _COLORS.items():
        marked = [i for i in places if state_shown(history, points[i]) == state]
        if marked:
            panel.scatter(
                marked,
                [values[i] for i in marked],
                s=60,
                color=color,
                marker=_marker(state, history.better),
                label=f"{state} ({len(marked)})",
                zorder=3,
            )
    _name_changes(panel, history, series)
    _label(panel, history, series)


def _marker(state: str, better: str) -> str:
    """A triangle that points in the direction of the change."""
    if state == "open":
        return "o"
    return "^" if (state == "regressed") == (better == "lower") else "v"


def _name_changes(panel: Any, history: History, series: HistorySeries) -> None:
    """Label the newest changes with their commits, because the ticks omit some."""
    changed = [
        (i, point)
        for i, point in enumerate(series.points)
        if state_shown(history, point) in ("regressed", "improved")
    ]
    for i, point in changed[-_MOST_NAMED:]:
        color = _COLORS[point.state]
        panel.axvline(i, color=color, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        panel.text(
            i - 0.08,
            0.02,
            _text(point_name(point)),
            transform=panel.get_xaxis_transform(),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize="small",
            color=color,
        )


def _label(panel: Any, history: History, series: HistorySeries) -> None:
    points = series.points
    every = -(-len(points) // _MOST_TICKS)
    ticks = list(range(len(points) - 1, -1, -every))[::-1]
    names = [_text(point_name(points[i])) for i in ticks]
    panel.set_xticks(ticks, names, rotation=45, ha="right", fontsize="small")
    panel.yaxis.set_major_formatter(lambda value, _: metric_text(value, history.unit))
    panel.set_xlabel("commits by time")
    panel.set_ylabel(f"{history.label}, {history.better} is better")
    panel.set_title(_text(series_name(series.fingerprint)), loc="left", fontsize="medium")
    if any(state_shown(history, point) for point in points):
        panel.legend(frameon=False, fontsize="small")


def _text(name: str) -> str:
    """Text that is safe to draw and that matplotlib does not parse as a formula."""
    return plain(name).replace("$", r"\$")


def _errors(points: Sequence[HistoryPoint]) -> list[list[float]]:
    """Distances to both ends of the interval; zero if it is unknown or too wide."""
    below, above = [], []
    for point in points:
        low, high = point.low, point.high
        if low is None or high is None or high > 2 * point.value:
            low = high = point.value
        below.append(max(point.value - low, 0.0))
        above.append(max(high - point.value, 0.0))
    return [below, above]
