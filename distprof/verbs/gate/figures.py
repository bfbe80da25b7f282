"""Figures of a check: the change of each metric and its tolerance, and the change of each part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    captioned,
    interval_bar,
    joined,
    row,
    rows,
)
from distprof.verbs.compare.figures import change_figure
from distprof.verbs.gate import LEVEL
from distprof.verbs.gate.baseline import find_metric
from distprof.verbs.gate.check import CheckResult, MetricCheck
from distprof.verbs.gate.show import amount, change_text

_NARROWEST, _WIDEST = 2.0, 12.0
"""Minimum and maximum distance from no change to the edge of the figure, in tolerances."""


def figures(result: CheckResult) -> Iterator[Part]:
    """Metrics, the gated first and the others under them; then the change of each part."""
    captions = {
        True: f"Gated metrics: the estimated change with its {LEVEL} % interval. The lines mark no "
        "change and the tolerance. The shaded area is within the tolerance. Right is worse.",
        False: "Informational metrics, drawn in the same way. They do not decide the outcome.",
    }
    drawn = joined(
        metrics_figure([check for check in result.metrics if check.is_gated is gated], caption)
        for gated, caption in captions.items()
    )
    yield Part(anchor="metrics", title="Metrics", content=drawn)
    changed = change_figure([(part.part, part.change_ns) for part in result.parts])
    yield Part(anchor="changes", title="What changed", content=changed)


def metrics_figure(checks: Sequence[MetricCheck], caption: str) -> Markup:
    """A row per metric, in units of its tolerance; empty if there is no metric to draw."""
    furthest = [abs(place) for check in checks for place in _places(check) if place is not None]
    if not furthest:
        return EMPTY
    widest = min(max(_NARROWEST, 1.1 * max(furthest)), _WIDEST)
    if max(furthest) > widest:
        caption += " A mark at the edge stands for a larger change."
    lines = [_metric_row(check, widest) for check in checks]
    return captioned(caption, rows(lines))


def _places(check: MetricCheck) -> list[float | None]:
    """The estimate and the ends of its interval, in tolerances."""
    changes = (check.change, check.low, check.high)
    return [None if each is None else tolerances_worse(each, check) for each in changes]


def tolerances_worse(change: float, check: MetricCheck) -> float | None:
    """How much worse a change is, in tolerances; negative if it is better.

    The scale is that of the decision: differences are unchanged and ratios are logarithms, so 1 is
    exactly the largest loss that is accepted. None if the metric is from another version, or if its
    tolerance is 0.
    """
    metric = find_metric(check.metric)
    if metric is None or not check.tolerance > 0 or (check.scale == "ratio" and change <= 0):
        return None
    sign = 1 if metric.better == "lower" else -1
    if check.scale != "ratio":
        return sign * change / check.tolerance
    if sign < 0 and check.tolerance >= 1:
        return None
    limit = math.log1p(check.tolerance) if sign > 0 else -math.log1p(-check.tolerance)
    return sign * math.log(change) / limit


def _metric_row(check: MetricCheck, widest: float) -> Markup:
    """Name of a metric, its change and interval as a bar and as text; empty if unknown."""
    middle, *ends = (None if at is None else _share(at, widest) for at in _places(check))
    if middle is None:
        return EMPTY
    known = sorted(end for end in ends if end is not None)
    drawn = interval_bar(
        middle,
        (known[0], known[1]) if len(known) == 2 else None,
        label=f"{check.label}: {change_text(check)}; {check.state}",
        zone=(_share(-1, widest), _share(1, widest)),
        marks=(_share(0, widest), _share(1, widest)),
    )
    unit = "%" if check.scale == "ratio" else "points"
    value = f"{amount(check.change, check.scale)} {unit}"
    return row(check.label, drawn, f"{value}, {check.state}" if check.is_gated else value)


def _share(tolerances: float, widest: float) -> float:
    """Position as a share of the width; values outside the figure are drawn at its edge."""
    kept = min(max(tolerances, -widest), widest)
    return 0.02 + 0.96 * (kept + widest) / (2 * widest)


FIGURES = {CheckResult: figures}
