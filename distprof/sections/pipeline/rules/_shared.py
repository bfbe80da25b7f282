"""Shared by the pipeline rules: which pipelines can be judged, and how to name them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.pipeline.result import PipelineGroup, PipelinePrediction, PipelineResult
from distprof.units import format_duration, name_ranks


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline whose idle time is split into its causes."""

    group: PipelineGroup  # The pipeline.
    span_ns: int  # Span of the pipeline, above 0.
    step_ns: int  # Training step.
    idle_ns: int  # Idle time of the mean rank.
    warm_up_drain_ns: int  # Part of the idle time due to warm-up and drain.
    exposed_p2p_ns: int  # Part of the idle time due to exposed messages.

    @property
    def name(self) -> str:
        """For example ``The pipeline of ranks 0-3``."""
        return f"The pipeline of {name_ranks(self.group.ranks)}"

    def ratio(self, ns: float) -> float:
        """Share of the span."""
        return ns / self.span_ns

    def promise(self, prediction: PipelinePrediction) -> str:
        """A sentence that compares a prediction with the present step."""
        now, then = format_duration(self.step_ns), format_duration(prediction.step_ns)
        return f"{prediction.what} would take {then} instead of {now} (predicted)"


def judged_groups(pipeline: PipelineResult) -> Iterator[Judged]:
    """Pipelines whose idle time is split into causes; none if the run has no pipeline."""
    if not pipeline.groups:
        return
    known = [judged for group in pipeline.groups if (judged := _judged(group)) is not None]
    if not known:
        reasons = [note for group in pipeline.groups for note in group.notes[-1:]]
        why = reasons[0] if reasons else "no work was recorded in its stages."
        raise InsufficientEvidenceError(
            f"the causes of the pipeline's idle time are unknown: {why}"
        )
    yield from known


def _judged(group: PipelineGroup) -> Judged | None:
    parts = (group.span_ns, group.idle_ns, group.warm_up_drain_ns, group.exposed_p2p_ns)
    if any(part is None for part in parts) or not group.span_ns:
        return None
    return Judged(
        group=group,
        span_ns=group.span_ns,
        step_ns=group.step_ns or group.span_ns,
        idle_ns=group.idle_ns or 0,
        warm_up_drain_ns=group.warm_up_drain_ns or 0,
        exposed_p2p_ns=group.exposed_p2p_ns or 0,
    )
