"""In which order findings are shown, and which are left out because others say the same better.

A wide finding measures a whole, for example all communication that nothing hides; a narrower one
names the reason of a part of it (``Draft.explains``). The dearest of them that explains most of the
whole makes it redundant; one that explains half of it comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distprof.rules.base import Draft, Rule
from distprof.terms import Severity

__all__ = ["Judged", "in_order"]

EXPLAINED = 0.8
"""Share of a wide finding's cost from which a narrower one leaves nothing to say."""
MOSTLY = 0.5
"""Share from which the narrower one comes first, though it costs less."""

_Order = tuple[float, int, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft and its rule; what it could recover orders it, even where that is not shown."""

    rule: Rule
    draft: Draft
    recoverable_ns: int | None

    @property
    def order(self) -> _Order:
        """What findings are sorted by."""
        cost = self.draft.cost_ns_per_step if self.recoverable_ns is None else self.recoverable_ns
        severity = self.draft.severity or self.rule.severity
        if cost is None and severity is Severity.ERROR:
            return (-math.inf, -severity.rank, self.rule.code)
        return (math.inf if cost is None else -cost, -severity.rank, self.rule.code)


def in_order(judged: Iterable[Judged]) -> list[Judged]:
    """The findings worth showing: errors without a cost, then the dearest first.

    A finding that is mostly explained by a narrower one comes right after it at the earliest.
    """
    items = list(judged)
    placed: list[tuple[_Order, int, _Order, Judged]] = []
    for item in items:
        share, narrower = _best_explanation(item, items)
        if share >= EXPLAINED:
            continue
        after = narrower is not None and share >= MOSTLY and narrower.order > item.order
        place = narrower.order if after and narrower is not None else item.order
        placed.append((place, int(after), item.order, item))
    return [item for *_, item in sorted(placed, key=lambda entry: entry[:3])]


def _best_explanation(wide: Judged, items: Sequence[Judged]) -> tuple[float, Judged | None]:
    """The dearest finding that counts a part of this one's time, and the share that it counts.

    The largest part and not their sum: narrow findings may count the same time twice. A finding
    that is less severe explains nothing away.
    """
    whole = wide.draft.cost_ns_per_step
    if not whole:
        return 0.0, None
    best = max(
        (item for item in items if _explains(item, wide)),
        key=lambda item: item.draft.cost_ns_per_step or 0,
        default=None,
    )
    return (0.0 if best is None else (best.draft.cost_ns_per_step or 0) / whole), best


def _explains(narrow: Judged, wide: Judged) -> bool:
    """Two that claim to explain each other explain nothing: neither may take both away."""
    return (
        wide.rule.code in narrow.draft.explains
        and narrow.rule.code not in wide.draft.explains
        and _severity(narrow).rank >= _severity(wide).rank
    )


def _severity(item: Judged) -> Severity:
    return item.draft.severity or item.rule.severity
