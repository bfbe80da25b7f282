"""Changes of a simulated run, and the interface that simulates its step with them.

A run is a graph of traces (:mod:`~distprof.sections.whatif.scenarios`) or a log of operations
(:mod:`~distprof.sections.whatif.operation_changes`). The plan of repairs depends only on this
interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from distprof.schema import Int64Array

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
