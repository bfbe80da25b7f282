"""What rules on savings have in common."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limits
from distprof.sections.computation import (
    NO_OPERATORS,
    NO_SHAPES,
    ComputationResult,
    Saving,
)
from distprof.sections.shares import MeanStep, StepTimes
from distprof.terms import Confidence


def worth_of(
    computation: ComputationResult,
    times: StepTimes,
    limits: Limits,
    what: str,
    *,
    needs_sizes: bool = True,
) -> Iterator[tuple[Saving, MeanStep, int]]:
    """The saving of a change, and what its kernels take of a step, ns; nothing if too small.

    Raises:
        InsufficientEvidenceError: If sizes of inputs were not recorded, so nothing can be known.
    """
    missing = [why for why in computation.unavailable if why in (NO_OPERATORS, NO_SHAPES)]
    if missing and needs_sizes:
        raise InsufficientEvidenceError(missing[0])
    found = next((one for one in computation.savings if one.what == what), None)
    step = times.mean_step()
    saved = computation.saved_ns_per_step(what)
    if found is not None and step.ratio(saved) >= limits["saved_ratio"]:
        yield found, step, round(found.spent_ns / computation.num_samples)


def draft_of(
    computation: ComputationResult, what: str, headline: str, message: str, fix: str
) -> Draft:
    """The finding, with what the change saves."""
    return Draft(
        headline=headline,
        message=message,
        fix=fix,
        cost_ns_per_step=computation.saved_ns_per_step(what),
        confidence=Confidence.MODELLED,
        evidence=("computation.savings", "computation.operators"),
        without=what,
    )
