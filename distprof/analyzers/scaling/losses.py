"""Where lost efficiency went: parts of a step against those of the same work at the baseline.

A profiler makes steps longer, so that traced parts do not add up to the step that was timed without
it. They are scaled by one factor to that step: the profiler is taken to stretch all parts alike.
What rounding to whole nanoseconds leaves goes to ``other``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from distprof.analyzers.scaling.result import CAUSES, ScalingLoss
from distprof.artefacts.summary_file import StepParts, SummaryFile

__all__ = ["mean_parts", "scaled", "split_loss", "transfer_ns"]


def mean_parts(runs: Sequence[SummaryFile]) -> StepParts | None:
    """Parts of all traced repeats added up; None where no repeat has sound ones."""
    found = [run.parts for run in runs if run.parts is not None and _is_sound(run.parts)]
    if not found:
        return None
    fields = StepParts.__struct_fields__
    return StepParts(**{field: sum(getattr(part, field) for part in found) for field in fields})


def scaled(parts: StepParts, step_ns: int) -> StepParts:
    """The same shares of another step; whole ns that add up to it exactly."""
    factor = Fraction(step_ns, parts.span_ns)
    values = {field: int(getattr(parts, field) * factor) for field in CAUSES}
    values["other_ns"] += step_ns - sum(values.values())
    return StepParts(span_ns=step_ns, **values)


def split_loss(
    base: StepParts, parts: StepParts, ideal_step_ns: int, step_ns: int
) -> tuple[ScalingLoss, ...]:
    """The step beyond the ideal one by cause; the sum is exact.

    Args:
        base: Of the baseline.
        parts: Of this size.
        ideal_step_ns: The step at the baseline's efficiency.
        step_ns: The step.
    """
    before, after = scaled(base, ideal_step_ns), scaled(parts, step_ns)
    lost = {field: getattr(after, field) - getattr(before, field) for field in CAUSES}
    return tuple(
        ScalingLoss(cause=cause, lost_ns=lost[field], ratio=lost[field] / step_ns)
        for field, cause in CAUSES.items()
    )


def transfer_ns(runs: Sequence[SummaryFile], parts: StepParts) -> int | None:
    """Transfers of a step, hidden ones included; None where unknown, or nothing was exposed.

    Exposed communication is the share 1 − overlap of all communication, waiting included.
    """
    overlaps = [run.overlap_ratio for run in runs if run.parts is not None]
    known = [overlap for overlap in overlaps if overlap is not None and 0 <= overlap < 1]
    exposed = parts.exposed_transfer_ns + parts.unsplit_comm_ns
    blocked = exposed + parts.exposed_wait_ns + parts.bubble_ns
    if not known or exposed <= 0:
        return None
    overlap = sum(known) / len(known)
    return round(exposed + blocked * overlap / (1 - overlap))


def _is_sound(parts: StepParts) -> bool:
    """Whether they add up to a step, and none is negative."""
    values = [int(getattr(parts, field)) for field in CAUSES]
    return parts.span_ns > 0 and min(values) >= 0 and sum(values) == parts.span_ns
