"""More micro-batches or another schedule, as a change that is made after others.

The same batch in more and smaller micro-batches, or in another order, fills a pipeline better. The
time saved depends on the changes before it: stages of unequal length leave gaps that no order
fills. Therefore both orders are replayed again with the work of the stages after these changes, and
the pipeline's time shrinks by the ratio of the two. The rest of the step stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.prediction import Candidate, StageWork, predict
from distprof.sections.pipeline.result import (
    SCHEDULE,
    PipelineGroup,
    PipelinePrediction,
    PipelineResult,
    refill_key,
)
from distprof.sections.whatif.changes import Change


class Refill(Change, frozen=True, kw_only=True):
    """Another order of the work of a pipeline."""

    group: PipelineGroup  # The pipeline.
    present: Candidate  # Its present order.
    other: Candidate  # The order that replaces it.

    def saved_ns(self, step_ns: int, usual: Mapping[int, float], work: Mapping[int, float]) -> int:
        """Time that the other order saves after other changes."""
        now, then = self._makespans(self._factors(usual, work))
        if now <= 0 or then >= now:
            return 0
        group = self.group
        outside = max((group.step_ns or 0) - (group.span_ns or 0), 0)
        span = min(max(step_ns - outside, now), step_ns)
        return int(span * (1 - then / now))

    def _factors(self, usual: Mapping[int, float], work: Mapping[int, float]) -> list[float]:
        """Work at each position of the busiest pipeline of this shape, over the measured work.

        The measured pipeline is ``group.ranks``, the one with the median span.
        """
        replicas = self.group.replicas or (self.group.ranks,)
        busiest = max(replicas, key=lambda ranks: max(work.get(rank, 0.0) for rank in ranks))
        return [
            work[rank] / usual[measured] if rank in work and usual.get(measured) else 1.0
            for rank, measured in zip(busiest, self.group.ranks, strict=True)
        ]

    def _makespans(self, factors: Sequence[float]) -> tuple[int, int]:
        """Makespans of the present order and the other one."""
        group = self.group
        stages = group.stages_detail
        scale = np.array([factors[stage.position] for stage in stages])
        backward = _ns([stage.backward_ns or 0 for stage in stages], scale)
        work = StageWork(
            forward_ns=_ns([stage.forward_ns or 0 for stage in stages], scale),
            backward_input_ns=backward // 2,
            backward_weight_ns=backward - backward // 2,
            num_micro_batches=group.num_micro_batches,
        )
        made = predict(
            work,
            len(group.ranks),
            (self.present, self.other),
            transfer_ns=group.message_ns or 0,
        )
        return (made[0].makespan_ns, made[1].makespan_ns) if len(made) == 2 else (0, 0)


def _ns(values: Sequence[int], scale: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(np.array(values) * scale).astype(np.int64)


def refill_of(pipeline: PipelineResult) -> Refill | None:
    """The better order of the longest pipeline; None if none is known."""
    groups = [group for group in pipeline.groups if group.better and group.schedule in SCHEDULES]
    if not groups:
        return None
    group = max(groups, key=lambda one: one.span_ns or 0)
    best = group.better[0]
    return Refill(
        what=refill_key(best),
        title=_title(group, best),
        done=_done(group, best),
        ranks=(),
        group=group,
        present=Candidate(
            schedule=group.schedule,
            num_micro_batches=group.num_micro_batches,
            virtual_stages=group.virtual_stages,
            keeps_stages=True,
        ),
        other=Candidate(
            schedule=best.schedule,
            num_micro_batches=best.num_micro_batches,
            virtual_stages=best.virtual_stages,
            keeps_stages=best.virtual_stages == group.virtual_stages,
        ),
    )


def _title(group: PipelineGroup, best: PipelinePrediction) -> str:
    if refill_key(best) == SCHEDULE:
        return f"the pipeline ran {best.schedule}"
    return f"the same batch came in {_count(best)} instead of {group.num_micro_batches}"


def _done(group: PipelineGroup, best: PipelinePrediction) -> str:
    if refill_key(best) == SCHEDULE:
        return f"{best.schedule} instead of {group.schedule}"
    return f"{_count(best)} instead of {group.num_micro_batches}, same batch"


def _count(best: PipelinePrediction) -> str:
    return f"{best.num_micro_batches} micro-batches"
