"""Plots a sweep to files. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distprof.documents.plots import new_figure, save_figure
from distprof.errors import InputError
from distprof.sections.table import counted
from distprof.verbs.sweep.result import CAUSES, ScalingResult, ScalingSize
from distprof.verbs.sweep.show import LAWS, follows

_COLORS = {
    "exposed transfer": "#3b6fb6",
    "imbalance and stragglers": "#c0392b",
    "pipeline bubble": "#8e44ad",
    "exposed communication, not split": "#7fa3d1",
    "host": "#d4ac0d",
    "input": "#e67e22",
    "copies": "#b0578d",
    "computation grew": "#27814d",
    "other": "#95a5a6",
}

_MEASURED = "#1b2631"

_LAW_COLORS = ("#2471a3", "#ca6f1e")

_MOST_TICKS = 10

_LEAST_SHARE = 0.002  # minimum share of the step: thinner bars are invisible


def draw_scaling(scaling: ScalingResult, file: str) -> None:
    """Plot efficiency with its intervals and laws, and losses stacked by cause over the sizes.

    Raises:
        UsageError: If the extension is not one of :data:`FORMATS`.
        MissingExtraError: If matplotlib is not installed.
        InputError: If the sweep is empty, or the file cannot be written.
    """
    if not scaling.sizes:
        raise InputError(
            file,
            expected="a sweep to draw",
            found=" ".join(scaling.unavailable) or "no sizes",
            fix="distprof scale --help",
        )
    lossy = [size for size in scaling.sizes if size.losses]
    figure, axes = new_figure(file, panels=2 if lossy else 1)
    _draw_efficiency(axes[0], scaling)
    if lossy:
        _draw_losses(axes[1], lossy)
    save_figure(figure, file)


def _draw_efficiency(panel: Any, scaling: ScalingResult) -> None:
    sizes = scaling.sizes
    panel.axhline(1.0, color="#aab7b8", linewidth=1, linestyle=(0, (4, 3)))
    _draw_laws(panel, scaling)
    _draw_runs(panel, sizes)
    panel.errorbar(
        [size.num_ranks for size in sizes],
        [size.efficiency for size in sizes],
        yerr=_errors(sizes),
        fmt="o",
        color=_MEASURED,
        capsize=3,
        label="measured, 95 %",
        zorder=3,
    )
    ticks = _ticks(scaling)
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.set_xticks([], minor=True)
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panel.set_ylim(0, _top(sizes))
    panel.set_xlabel("ranks")
    panel.set_ylabel(f"efficiency over {counted(scaling.baseline_ranks or 1, 'rank')}")
    panel.set_title(f"Efficiency, {scaling.mode} scaling", loc="left")
    panel.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4)


def _top(sizes: Sequence[ScalingSize]) -> float:
    """Upper end of the axis: it shows every size, and single runs unless one is far off."""
    best = max(size.efficiency for size in sizes)
    runs = [_efficiency(size, step) for size in sizes for step in size.run_step_ns]
    return 1.05 * max(1.05, best, min(max(runs, default=0.0), 1.5))


def _efficiency(size: ScalingSize, step_ns: int) -> float:
    """Efficiency of a single run."""
    return size.efficiency * size.step_ns / step_ns


def _draw_laws(panel: Any, scaling: ScalingResult) -> None:
    """Each law with its interval; dashed beyond the measurements, if it fits them."""
    for law, color in zip(scaling.laws, _LAW_COLORS, strict=False):
        known = [one for one in law.predictions if not one.is_extrapolated]
        drawn = law.predictions if follows(law, scaling.sizes[-1]) else known
        for ones, style in ((known, "-"), (drawn[len(known) - 1 :], (0, (3, 2)))):
            xs = [one.num_ranks for one in ones]
            values = [one.efficiency for one in ones]
            label = LAWS.get(law.law, law.law) if style == "-" else None
            panel.plot(xs, values, linewidth=1.3, color=color, linestyle=style, label=label)
        low = [max(one.low, 0) for one in drawn]
        high = [min(one.high, 1.5) for one in drawn]
        xs = [one.num_ranks for one in drawn]
        panel.fill_between(xs, low, high, color=color, alpha=0.10, linewidth=0)


def _draw_runs(panel: Any, sizes: Sequence[ScalingSize]) -> None:
    """A small dot for every run of sizes with several runs."""
    dots = [
        (size.num_ranks, _efficiency(size, step))
        for size in sizes
        if len(size.run_step_ns) > 1
        for step in size.run_step_ns
    ]
    if dots:
        xs, ys = zip(*dots, strict=True)
        panel.plot(xs, ys, ".", color=_MEASURED, alpha=0.35, markersize=5, label="single runs")


def _ticks(scaling: ScalingResult) -> list[int]:
    """Ticks at measured and extrapolated sizes, few enough to read."""
    beyond = {
        one.num_ranks
        for law in scaling.laws
        if follows(law, scaling.sizes[-1])
        for one in law.predictions
        if one.is_extrapolated
    }
    ticks = sorted({size.num_ranks for size in scaling.sizes} | beyond)
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]


def _errors(sizes: Sequence[ScalingSize]) -> list[list[float]]:
    """Distances to both ends of the interval; zero if it is unknown or too wide."""
    below, above = [], []
    for size in sizes:
        low, high = size.efficiency_low, size.efficiency_high
        if low is None or high is None or high > 4 * low:
            low = high = size.efficiency
        below.append(max(size.efficiency - low, 0.0))
        above.append(max(high - size.efficiency, 0.0))
    return [below, above]


def _draw_losses(panel: Any, sizes: Sequence[ScalingSize]) -> None:
    """Causes stacked upwards if they cost time, downwards if they gain time."""
    places = range(len(sizes))
    above, below = [0.0] * len(sizes), [0.0] * len(sizes)
    for cause in CAUSES.values():
        shares = [
            next((loss.ratio for loss in size.losses if loss.cause == cause), 0.0) for size in sizes
        ]
        if max(map(abs, shares)) < _LEAST_SHARE:
            continue
        bottoms = [above[i] if share >= 0 else below[i] for i, share in enumerate(shares)]
        panel.bar(places, shares, bottom=bottoms, color=_COLORS[cause], width=0.6, label=cause)
        above = [a + max(share, 0) for a, share in zip(above, shares, strict=True)]
        below = [b + min(share, 0) for b, share in zip(below, shares, strict=True)]
    panel.axhline(0, color="#566573", linewidth=0.8)
    panel.set_xticks(list(places), [f"{size.num_ranks:,}" for size in sizes])
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panel.set_xlabel("ranks")
    panel.set_ylabel("share of the step")
    panel.set_title("Losses by cause", loc="left")
    panel.legend(
        frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3
    )
