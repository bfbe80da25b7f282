"""Plots as files, for people who would rather look than read. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distprof.analyzers.scaling.result import CAUSES, ScalingResult, ScalingSize
from distprof.errors import InputError, MissingExtraError, UsageError

__all__ = ["FORMATS", "draw_scaling", "new_figure", "save_figure"]

FORMATS = (".svg", ".png", ".pdf")

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


def draw_scaling(scaling: ScalingResult, file: str) -> None:
    """Efficiency with its intervals and laws, and the losses by cause stacked over the sizes.

    Args:
        scaling: A sweep of at least one size.
        file: Where; its ending says the format.

    Raises:
        UsageError: If the ending is none of :data:`FORMATS`.
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


def new_figure(file: str, *, panels: int) -> tuple[Any, list[Any]]:
    """A figure with panels side by side.

    Raises:
        UsageError: If the file's ending is no format.
        MissingExtraError: If matplotlib is not installed.
    """
    if Path(file).suffix.lower() not in FORMATS:
        raise UsageError(f"{file}: a plot ends in {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a plot", "plot") from error
    figure = Figure(figsize=(6.4 * panels, 4.4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(visible=True, axis="y", color="#e5e8e8", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, list(axes)


def save_figure(figure: Any, file: str) -> None:
    """Write it.

    Raises:
        InputError: If the file cannot be written.
    """
    try:
        figure.savefig(file, dpi=150, metadata=_metadata(file))
    except OSError as error:
        raise InputError(
            file,
            expected="a place where a plot can be written",
            found=error.strerror or str(error),
            fix="choose another file with --plot",
        ) from error


def _metadata(file: str) -> dict[str, Any]:
    """No dates in files, so that the same sweep gives the same file."""
    return {"Date": None} if file.lower().endswith(".svg") else {}


def _draw_efficiency(panel: Any, scaling: ScalingResult) -> None:
    sizes = scaling.sizes
    ranks = [size.num_ranks for size in sizes]
    panel.axhline(1.0, color="#aab7b8", linewidth=1, linestyle=(0, (4, 3)))
    for law in scaling.laws:
        known = [one for one in law.predictions if one.num_ranks >= min(ranks)]
        name = {"usl": "USL", "amdahl": "Amdahl", "gustafson": "Gustafson"}.get(law.law, law.law)
        xs = [one.num_ranks for one in known]
        (line,) = panel.plot(xs, [one.efficiency for one in known], linewidth=1.2, label=name)
        low, high = [max(one.low, 0) for one in known], [min(one.high, 1.5) for one in known]
        panel.fill_between(xs, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    panel.errorbar(
        ranks,
        [size.efficiency for size in sizes],
        yerr=_errors(sizes),
        fmt="o",
        color=_MEASURED,
        capsize=3,
        label="measured, 95 %",
        zorder=3,
    )
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panel.set_ylim(0, max(1.1, *(1.05 * size.efficiency for size in sizes)))
    panel.set_xlabel("ranks")
    panel.set_ylabel(f"efficiency over {scaling.baseline_ranks}")
    panel.set_title(f"Scaling efficiency ({scaling.mode})", loc="left")
    panel.legend(frameon=False, loc="lower left")


def _errors(sizes: Sequence[ScalingSize]) -> list[list[float]]:
    """Distances to both ends of the interval; none where it is not known or tells nothing."""
    below, above = [], []
    for size in sizes:
        low, high = size.efficiency_low, size.efficiency_high
        if low is None or high is None or high > 4 * low:
            low = high = size.efficiency
        below.append(max(size.efficiency - low, 0.0))
        above.append(max(high - size.efficiency, 0.0))
    return [below, above]


def _draw_losses(panel: Any, sizes: Sequence[ScalingSize]) -> None:
    """Causes stacked upwards where they cost, downwards where they gain."""
    places = range(len(sizes))
    above, below = [0.0] * len(sizes), [0.0] * len(sizes)
    for cause in CAUSES.values():
        shares = [
            next((loss.ratio for loss in size.losses if loss.cause == cause), 0.0) for size in sizes
        ]
        if max(map(abs, shares)) < 1e-4:
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
    panel.set_title("Lost efficiency by cause", loc="left")
    panel.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
