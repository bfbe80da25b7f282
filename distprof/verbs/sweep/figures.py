"""Figures of a sweep: efficiency over ranks with fitted laws, and losses stacked by cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    Segment,
    bar,
    captioned,
    joined,
    legend,
    row,
    rows,
)
from distprof.documents.html.chart import Chart, nice_ticks
from distprof.sections.table import counted
from distprof.units import format_duration, format_ratio
from distprof.verbs import PARTS
from distprof.verbs.sweep import ScalingReport, ScalingResult, ScalingSize, says
from distprof.verbs.sweep.show import LAWS, WIDEST, follows

_MOST_TICKS = 10
_HIGHEST = 1.5
"""Maximum end of the axis for single runs."""
_LEAST_SHARE = 0.002
"""Minimum share of the step: thinner pieces are invisible."""
_KINDS = {part.cause: part.kind for part in PARTS.values()}


def figures(report: ScalingReport) -> Iterator[Part]:
    """Efficiency over ranks, and where it is lost."""
    losses = losses_figure(report.scaling.sizes)
    yield Part(anchor="curve", title="Efficiency", content=curve_figure(report.scaling))
    yield Part(anchor="losses", title="Losses by cause", content=losses)


def curve_figure(scaling: ScalingResult) -> Markup:
    """Measured sizes with intervals, the ideal line, and each law; empty without two sizes."""
    sizes = scaling.sizes
    if len(sizes) < 2:
        return EMPTY
    following = [law for law in scaling.laws if follows(law, sizes[-1])]
    beyond = {one.num_ranks for law in following for one in law.predictions if one.is_extrapolated}
    numbers = sorted({size.num_ranks for size in sizes} | beyond)
    top = _top(sizes)
    chart = Chart(left=_x(numbers[0]) - 0.2, right=_x(numbers[-1]) + 0.2, least=0, most=top)
    text = ", ".join(
        f"{counted(size.num_ranks, 'rank')} {format_ratio(size.efficiency)}" for size in sizes
    )
    every = -(-len(numbers) // _MOST_TICKS)
    drawn = chart.drawn(
        chart.axes(
            ((_x(number), f"{number:,}") for number in numbers[::every]),
            ((value, f"{100 * value:.0f} %") for value in nice_ticks(0, top, 5)),
            "ranks",
        ),
        chart.level(1.0, "ideal"),
        *_laws(chart, scaling),
        *_runs(chart, sizes),
        *(_size(chart, size) for size in sizes),
        label=f"Efficiency over ranks, {scaling.mode} scaling: {text}",
    )
    baseline = counted(scaling.baseline_ranks or 1, "rank")
    caption = says("efficiency", baseline=baseline, mode=scaling.mode)
    names = [f"law: {LAWS.get(law.law, law.law)}" for law in scaling.laws]
    named = legend([(f"dot-fill s{n % 6}", name) for n, name in enumerate(names)])
    return captioned(caption, drawn, named if names else EMPTY)


def _x(ranks: float) -> float:
    return math.log2(max(ranks, 1))


def _top(sizes: Sequence[ScalingSize]) -> float:
    """Upper end of the axis: it shows every size, and single runs unless one is far off."""
    runs = [_of_run(size, ns) for size in sizes for ns in size.run_step_ns]
    return 1.05 * max(
        1.05, *(size.efficiency for size in sizes), min(max(runs, default=0), _HIGHEST)
    )


def _of_run(size: ScalingSize, step_ns: int) -> float:
    """Efficiency of a single run."""
    return size.efficiency * size.step_ns / max(step_ns, 1)


def _laws(chart: Chart, scaling: ScalingResult) -> Iterator[Markup]:
    """Each law with its interval; a law that fits is extrapolated with a dashed line."""
    for number, law in enumerate(scaling.laws):
        known = [one for one in law.predictions if not one.is_extrapolated]
        shown = law.predictions if follows(law, scaling.sizes[-1]) else known
        kind = f"s{number % 6}"
        bounds = [(_x(one.num_ranks), max(one.low, 0.0), one.high) for one in shown]
        yield chart.area(bounds, kind)
        yield chart.curve([(_x(one.num_ranks), one.efficiency) for one in known], kind)
        rest = shown[len(known) - 1 :] if known else shown
        if len(rest) > 1:
            points = [(_x(one.num_ranks), one.efficiency) for one in rest]
            yield chart.curve(points, f"beyond {kind}")


def _runs(chart: Chart, sizes: Sequence[ScalingSize]) -> Iterator[Markup]:
    """A small mark for every run of sizes with several runs."""
    for size in sizes:
        if len(size.run_step_ns) < 2:
            continue
        for ns in size.run_step_ns:
            at = (_x(size.num_ranks), _of_run(size, ns))
            yield chart.dot(at, f"one run: {format_duration(ns)} per step", "faint", radius=2.5)


def _size(chart: Chart, size: ScalingSize) -> Markup:
    at, low, high = _x(size.num_ranks), size.efficiency_low, size.efficiency_high
    text = f"{counted(size.num_ranks, 'rank')}: {format_ratio(size.efficiency)}"
    whisker = EMPTY
    if low is not None and high is not None and high <= WIDEST * low:
        whisker = chart.whisker(at, low, high)
        text += f", 95 % {format_ratio(low)} to {format_ratio(high)}"
    return joined((whisker, chart.dot((at, size.efficiency), text)))


def losses_figure(sizes: Sequence[ScalingSize]) -> Markup:
    """Losses of each size stacked by cause, with gains to the left; empty without losses."""
    lossy = [size for size in sizes if any(_is_seen(loss.ratio) for loss in size.losses)]
    if not lossy:
        return EMPTY
    left = max(_sum(size, is_loss=False) for size in lossy)
    whole = left + max(_sum(size, is_loss=True) for size in lossy)
    if not 0 < whole < math.inf:
        return EMPTY
    lines = [_losses_row(size, left / whole, whole) for size in lossy]
    used = {loss.cause for size in lossy for loss in size.losses if _is_seen(loss.ratio)}
    named = legend([(f"k-{_KINDS[cause]}", cause) for cause in _KINDS if cause in used])
    return captioned(says("losses"), rows(lines), named)


def _is_seen(ratio: float) -> bool:
    return abs(ratio) >= _LEAST_SHARE


def _sum(size: ScalingSize, *, is_loss: bool) -> float:
    return sum(abs(loss.ratio) for loss in size.losses if (loss.ratio > 0) is is_loss)


def _losses_row(size: ScalingSize, zero: float, whole: float) -> Markup:
    order = sorted(size.losses, key=lambda loss: loss.ratio > 0)  # gains first, towards the line
    pieces = [
        Segment(
            kind=_KINDS.get(loss.cause, "other"),
            ratio=abs(loss.ratio) / whole,
            title=f"{loss.cause}: {_percent(loss.ratio)}",
        )
        for loss in order
    ]
    name = counted(size.num_ranks, "rank")
    texts = ", ".join(piece.title for piece in pieces if piece.ratio)
    start = zero - _sum(size, is_loss=False) / whole
    drawn = bar(pieces, label=f"{name}: {texts}", start=start, marks=(zero,))
    return row(name, drawn, f"{_percent(sum(loss.ratio for loss in size.losses))} lost")


def _percent(ratio: float) -> str:
    return f"{'−' if ratio < -0.0005 else ''}{abs(100 * ratio):.1f} %"


FIGURES = {ScalingReport: figures}
