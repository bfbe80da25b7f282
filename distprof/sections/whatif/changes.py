"""What a simulated run can do without, and how its step is simulated then.

A run is a graph of traces (:mod:`~distprof.sections.whatif.scenarios`) or a log of operations
(:mod:`~distprof.sections.whatif.operation_changes`). The plan of repairs needs to know no more of
either than this module says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from distprof.schema import Int64Array

__all__ = ["Change", "Made", "Model", "lower"]

Made: TypeAlias = Mapping[str, float]
"""Key of each change that is made to the share of it that is made, above 0 and at most 1."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario changes; kinds of runs add how.

    Args:
        what: Stable key.
        title: What changes, as a clause that follows "if".
        ranks: Whose operations are changed; empty for all.
        done: The change as a fact, where its kind does not say all of it.
        most_ns: Upper bound of what it recovers, for a reason that the simulation does not hold.
    """

    what: str
    title: str
    ranks: tuple[int, ...] = ()
    done: str = ""
    most_ns: int | None = None


class Model(Protocol):
    """A run that can be simulated with any of its changes made, several at once too."""

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step, ns, with each of these sets of changes; the empty set is the run as it was."""

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """How long each rank works in its pipeline stages, in any unit; empty where unknown."""


def lower(values: Int64Array, changed: Sequence[Int64Array | None]) -> Int64Array | None:
    """The smallest of the changed values, plus what changes add elsewhere; None for no change.

    Of two changes that shorten the same thing, the one that shortens it more counts.
    """
    known = [one for one in changed if one is not None]
    if not known:
        return None
    less = np.min([np.minimum(one - values, 0) for one in known], axis=0)
    more = np.sum([np.maximum(one - values, 0) for one in known], axis=0)
    result: Int64Array = values + less + more
    return result
