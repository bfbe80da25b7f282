"""Rules on changes of the program that would save computation: rows of ``rules.toml``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.bounds import table_beside
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, Rule, rule
from distprof.sections.computation import NO_OPERATORS, NO_SHAPES, ComputationResult, Saving
from distprof.sections.shares import MeanStep, StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of a step: what messages of the table may name."""

    saving: Saving
    step: MeanStep
    computation: ComputationResult

    @property
    def spent(self) -> str:
        """What its kernels take, with the step."""
        return self.step.amount(self.spent_ns)

    @property
    def between(self) -> str:
        """Idle time between them that it saves, as a part of a sentence; empty if there is none."""
        return f", and {self.step.amount(self.idle_ns)} passes between them" if self.idle_ns else ""

    @property
    def kept(self) -> str:
        """Share of their time that remains."""
        return format_ratio(1 - self.saving.saved_ns / self.saving.spent_ns)

    @property
    def spent_ns(self) -> int:
        """What its kernels take, per step."""
        return self.computation.per_step(self.saving.spent_ns)

    @property
    def idle_ns(self) -> int:
        """Idle time between them that it saves, per step."""
        return self.computation.per_step(self.saving.idle_ns)


def _row(
    *,
    code: str,
    name: str,
    severity: str,
    what: str,
    change: str,
    saved_ratio: float,
    headline: str,
    message: str,
    fix: str,
    page: str,
    needs_sizes: bool = True,
) -> Rule:
    """Build the rule on a change that saves at least a share of the step.

    Without sizes of inputs, nothing can be known of a change that needs them.
    """

    def check(computation: ComputationResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
        missing = [why for why in computation.unavailable if why in (NO_OPERATORS, NO_SHAPES)]
        if missing and needs_sizes:
            raise InsufficientEvidenceError(missing[0])
        saving, saved_ns = computation.saving(what), computation.saved_ns_per_step(what)
        step = times.mean_step()
        if saving is None or step.ratio(saved_ns) < limits["saved_ratio"]:
            return
        found = Worth(saving=saving, step=step, computation=computation)
        yield Draft(
            headline=f"{headline} {step.part(found.spent_ns + found.idle_ns)}",
            message=message.format(found=found),
            fix=fix,
            cost_ns_per_step=saved_ns,
            confidence=Confidence.MODELLED,
            evidence=("computation.savings", "computation.operators"),
            without=what,
        )

    check.__name__, check.__doc__ = name, page
    limit = Limit(saved_ratio, f"share of the step that {change} must save")
    return rule(code, Severity(severity), saved_ratio=limit)(check)


RULES = tuple(_row(**each) for each in table_beside(__package__, "rules.toml")["rule"])
