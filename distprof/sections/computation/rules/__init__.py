"""Rules on computation, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.rules.base import Draft, InsufficientEvidenceError, Limits
from distprof.sections.computation import NO_OPERATORS, NO_SHAPES, ComputationResult, Saving
from distprof.sections.shares import MeanStep, StepTimes
from distprof.terms import Confidence


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of a step."""

    saving: Saving
    step: MeanStep
    spent_ns: int  # What its kernels take, per step.
    between_ns: int  # Idle time between them that it saves, per step.
    saved_ns: int  # Per step.

    @property
    def spent(self) -> str:
        """What its kernels take, with the step."""
        return self.step.amount(self.spent_ns)

    @property
    def size(self) -> str:
        """What the saving is about."""
        return self.saving.size

    def draft(self, headline: str, message: str, fix: str) -> Draft:
        """The finding; the headline ends with the share of the step."""
        return Draft(
            headline=f"{headline} {self.step.part(self.spent_ns + self.between_ns)}",
            message=message,
            fix=fix,
            cost_ns_per_step=self.saved_ns,
            confidence=Confidence.MODELLED,
            evidence=("computation.savings", "computation.operators"),
            without=self.saving.what,
        )


def worth_of(
    computation: ComputationResult,
    times: StepTimes,
    limits: Limits,
    what: str,
    *,
    needs_sizes: bool = True,
) -> Iterator[Worth]:
    """What a change saves; nothing if that is too little.

    Raises:
        InsufficientEvidenceError: If sizes of inputs were not recorded, so nothing can be known.
    """
    missing = [why for why in computation.unavailable if why in (NO_OPERATORS, NO_SHAPES)]
    if missing and needs_sizes:
        raise InsufficientEvidenceError(missing[0])
    found, saved_ns = computation.saving(what), computation.saved_ns_per_step(what)
    step = times.mean_step()
    if found is not None and step.ratio(saved_ns) >= limits["saved_ratio"]:
        yield Worth(
            saving=found,
            step=step,
            spent_ns=computation.per_step(found.spent_ns),
            between_ns=computation.per_step(found.idle_ns),
            saved_ns=saved_ns,
        )
