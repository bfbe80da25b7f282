"""What every analyzer's result has in common."""

from __future__ import annotations

import msgspec

__all__ = ["Record", "Result"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a result: plain numbers and names, written to ``report.json`` as it is.

    Times are int ns, sizes int bytes, ratios 0 to 1. None means not known; it is never 0.
    """


class Result(Record, frozen=True, kw_only=True):
    """The answer of one analyzer.

    Args:
        unavailable: What could not be measured and why, one sentence each.
    """

    unavailable: tuple[str, ...] = ()
