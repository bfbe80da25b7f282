"""Changes of a simulated run, and the interface that simulates its step with them.

A run is a graph of traces (:mod:`~distprof.sections.whatif.trace_model`) or a log of operations
(:mod:`~distprof.sections.whatif.operations`). The plan of repairs depends only on this interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.prediction import Candidate, StageWork, predict
from distprof.schema import Int64Array
from distprof.sections.pipeline.result import SCHEDULE, PipelineGroup, PipelineResult, refill_key

Made: TypeAlias = Mapping[str, float]
"""Changes that are made, by key, with the share of each, above 0 and at most 1."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario changes; subclasses add how, for each kind of run."""

    what: str  # Stable key.
    title: str  # What changes, as a clause that follows "if".
    ranks: tuple[int, ...] = ()  # Ranks whose operations change; empty for all.
    done: str = ""  # The change as a fact, if the wording of its kind does not say enough.
    # Upper bound of the time that it recovers, for a reason that is not simulated.
    most_ns: int | None = None


class Model(Protocol):
    """A run that can be simulated with any set of its changes."""

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step, ns, with each of these sets of changes; the empty set is the run as it was."""

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """How long each rank works in its pipeline stages, in any unit; empty if unknown."""


def lower(values: Int64Array, changed: Sequence[Int64Array | None]) -> Int64Array | None:
    """The smallest of the changed values, plus all increases; None for no change.

    If two changes shorten the same value, the one that shortens it more counts.
    """
    present = [one for one in changed if one is not None]
    if not present:
        return None
    less = np.min([np.minimum(one - values, 0) for one in present], axis=0)
    more = np.sum([np.maximum(one - values, 0) for one in present], axis=0)
    result: Int64Array = values + less + more
    return result


# Another order of a pipeline ----------------------------------------------------------------------


class Refill(Change, frozen=True, kw_only=True):
    """More micro-batches or another schedule, as a change that is made after others.

    The same batch in more and smaller micro-batches, or in another order, fills a pipeline better.
    The time saved depends on the changes before it: stages of unequal length leave gaps that no
    order fills. Therefore both orders are replayed again with the work of the stages after these
    changes, and the pipeline's time shrinks by the ratio of the two. The rest of the step stays the
    same.
    """

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
        """Work at each position of the busiest pipeline of this shape, over the measured work."""
        # The measured pipeline is ``group.ranks``, the one with the median span.
        replicas = self.group.replicas or (self.group.ranks,)
        busiest = max(replicas, key=lambda ranks: max(work.get(rank, 0.0) for rank in ranks))
        return [
            work[rank] / usual[measured] if rank in work and usual.get(measured) else 1.0
            for rank, measured in zip(busiest, self.group.ranks, strict=True)
        ]

    def _makespans(self, factors: Sequence[float]) -> tuple[int, int]:
        """Makespans of the present order and the other one."""
        group, stages = self.group, self.group.stages_detail
        scale = np.array([factors[stage.position] for stage in stages])
        forward, backward = (
            np.rint(np.array(ns) * scale).astype(np.int64)
            for ns in (
                [stage.forward_ns or 0 for stage in stages],
                [stage.backward_ns or 0 for stage in stages],
            )
        )
        work = StageWork(
            forward_ns=forward,
            backward_input_ns=backward // 2,
            backward_weight_ns=backward - backward // 2,
            num_micro_batches=group.num_micro_batches,
        )
        orders, transfer_ns = (self.present, self.other), group.message_ns or 0
        made = predict(work, len(group.ranks), orders, transfer_ns=transfer_ns)
        return (made[0].makespan_ns, made[1].makespan_ns) if len(made) == 2 else (0, 0)


def refill_of(pipeline: PipelineResult) -> Refill | None:
    """The better order of the longest pipeline; None if none is known."""
    groups = [group for group in pipeline.groups if group.better and group.schedule in SCHEDULES]
    if not groups:
        return None
    group = max(groups, key=lambda one: one.span_ns or 0)
    best, now = group.better[0], group.num_micro_batches
    count = f"{best.num_micro_batches} micro-batches"
    title = f"the same batch came in {count} instead of {now}"
    done = f"{count} instead of {now}, same batch"
    if refill_key(best) == SCHEDULE:
        title = f"the pipeline ran {best.schedule}"
        done = f"{best.schedule} instead of {group.schedule}"
    return Refill(
        what=refill_key(best),
        title=title,
        done=done,
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
