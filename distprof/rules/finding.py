"""What a rule yields."""

from __future__ import annotations

from distprof.analyzers.result import Record
from distprof.terms import Confidence, Severity

__all__ = ["Finding", "NotChecked"]


class Finding(Record, frozen=True, kw_only=True):
    """One problem, its cost and its fix.

    Args:
        code: Never reused, for example ``COM101``.
        name: The problem, never the cure, for example ``low-overlap``.
        message: One or two sentences with the numbers.
        ranks: Ranks concerned.
        steps: Steps concerned; empty for all analysed ones.
        cost_ns_per_step: Step time that could be recovered, an upper bound; None when unknown.
        recoverable_ns: Step time that the simulated step is shorter by without it; None where it
            was not simulated.
        evidence: Where the numbers come from: section and key of the report, one each.
        fix: What to do, one or two sentences.
        docs: Page of the rule, relative to the documentation.
    """

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    message: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    cost_ns_per_step: int | None
    evidence: tuple[str, ...]
    fix: str
    docs: str
    recoverable_ns: int | None = None


class NotChecked(Record, frozen=True, kw_only=True):
    """A rule that lacked its evidence, and why."""

    code: str
    name: str
    why: str
