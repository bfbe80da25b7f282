"""Whether a rank's operators get larger inputs than its peers', or take longer with the same ones.

Grids of thread blocks show neither for kernels that always launch as many as fit on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from distprof.costs.operators import parse_inputs, work_of
from distprof.escape import shorten
from distprof.sections.computation import OperatorStats, RankComputation, added

ALMOST_ALL = 0.7
"""Share of the computation with known inputs from which it counts as known."""

LARGER = 1.01
"""Work of a call relative to the peers' from which its inputs count as larger."""

_LONGEST_NAME = 48

SHORT_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "int64",
    "int": "int32",
}
"""Types as users name them, by their names in a trace."""


def tensors(text: str) -> tuple[str, ...]:
    """Each tensor among the inputs as ``bf16[8192, 768]``; empty if unknown."""
    inputs = parse_inputs(text)
    found = zip(inputs.sizes, inputs.types, strict=True)
    return tuple(f"{SHORT_TYPES.get(kind, kind)}{list(size)}" for size, kind in found if size)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of one rank's operators, compared with those of its peers."""

    larger_ratio: float  # Time that larger inputs add, over the peers' in the same operators.
    larger_share: float  # Share of the peers' time in operators that get larger inputs.
    larger: str  # The operator that they add most to, as a clause; empty if none.
    are_equal: bool  # Whether as many calls have the same inputs, for almost all computation.
    slower: str  # How much longer calls with the same inputs take, as a clause; empty if none do.


_Tensors: TypeAlias = tuple[str, ...]
_Operator: TypeAlias = dict[_Tensors, OperatorStats]
"""Calls of one operator with tensors of the same sizes on one rank."""


def compare_sizes(own: RankComputation, peers: Sequence[RankComputation]) -> Sizes | None:
    """Compare a rank with its peers over the same steps; None if no common inputs are known."""
    mine, *theirs = map(_by_operator, (own, *peers))
    shared = {
        name: _Shared(name, calls, others)
        for name, calls in mine.items()
        if (others := [rank[name] for rank in theirs if name in rank])
        and 2 * len(others) >= len(theirs)
    }
    usual_ns = sum(one.usual_ns for one in shared.values())
    if not usual_ns:
        return None
    grown = [one for one in shared.values() if one.larger_ns > 0]
    most = max(grown, key=lambda one: one.larger_ns, default=None)
    known_ns = sum(calls.total_ns for operator in mine.values() for calls in operator.values())
    is_known = known_ns >= ALMOST_ALL * sum(row.total_ns for row in own.rows)
    counts = _counts(mine)
    return Sizes(
        larger_ratio=sum(one.larger_ns for one in grown) / usual_ns,
        larger_share=sum(one.usual_ns for one in grown) / usual_ns,
        larger=most.text if most is not None else "",
        are_equal=is_known and 2 * sum(_counts(rank) == counts for rank in theirs) >= len(theirs),
        slower=_slower(shared.values()),
    )


def _by_operator(rank: RankComputation) -> dict[str, _Operator]:
    found: dict[str, _Operator] = {}
    for row in rank.rows:
        if sizes := tensors(row.inputs):
            calls = found.setdefault(row.name, {})
            before = calls.get(sizes)
            calls[sizes] = added(before, row, "num_calls", "total_ns") if before else row
    return found


def _counts(rank: dict[str, _Operator]) -> dict[tuple[str, _Tensors], int]:
    return {(name, key): calls.num_calls for name, of in rank.items() for key, calls in of.items()}


class _Shared:
    """An operator of the rank and of most of its peers."""

    def __init__(self, name: str, mine: _Operator, others: Sequence[_Operator]) -> None:
        self.name, self._mine, self._others = name, mine, others
        number, total_ns = _sums(mine)
        sums = [_sums(one) for one in others]
        self.usual_ns = float(np.median([ns for _, ns in sums]))
        as_many_ns = number * float(np.median([ns / calls for calls, ns in sums]))
        self._unit, work = _work_per_call(name, (mine, *others))
        self._ratio = work[0] / max(float(np.median(work[1:])), 1.0)
        # Nothing is known of how the time of other operators grows: attention's with the square.
        growth = self._ratio if self._unit != "elements" else self._ratio**2
        explained = (growth - 1) * as_many_ns if self._ratio >= LARGER else 0.0
        longer = total_ns - max(as_many_ns, self.usual_ns)
        self.larger_ns = max(min(explained, longer), 0.0)

    @property
    def text(self) -> str:
        """What its calls get more of."""
        text = f"calls of {shorten(self.name, _LONGEST_NAME)} have {self._ratio:.2f} times the"
        theirs = {key: calls for one in self._others for key, calls in one.items()}
        mine = _most(self._mine, theirs)
        usual = _most(theirs, self._mine, mine)
        pairs = ((a, b) for a, b in zip(mine, usual, strict=False) if a != b)
        sizes = next((f", for example {a} instead of {b}" for a, b in pairs), "")
        return f"{text} {self._unit} of its peers'{sizes}"

    def same(self) -> Iterator[tuple[int, float]]:
        """Time of the rank's calls that peers make with the same inputs, and their peers' time."""
        for key, calls in self._mine.items():
            usual = [one[key].total_ns / one[key].num_calls for one in self._others if key in one]
            if usual:
                yield calls.total_ns, calls.num_calls * float(np.median(usual))


def _sums(operator: _Operator) -> tuple[int, int]:
    """Number and time of all calls."""
    rows = operator.values()
    return sum(one.num_calls for one in rows), sum(one.total_ns for one in rows)


def _work_per_call(name: str, ranks: Sequence[_Operator]) -> tuple[str, list[float]]:
    """FLOP of a mean call of each rank; bytes or elements of its inputs if those are unknown."""
    for unit in _UNITS:
        work = [
            [(_UNITS[unit](name, one.inputs) or 0, one.num_calls) for one in rank.values()]
            for rank in ranks
        ]
        if all(each for rank in work for each, _ in rank):
            break
    return unit, [sum(n * each for each, n in rank) / sum(n for _, n in rank) for rank in work]


_UNITS: Mapping[str, Callable[[str, str], int | None]] = {
    "FLOP": lambda name, inputs: work_of(name, inputs).flop,
    "bytes": lambda name, inputs: work_of(name, inputs).bytes,
    "elements": lambda _, inputs: sum(parse_inputs(inputs).elements),
}
"""Work of one call of an operator with its inputs, by what is counted, the surest first."""


def _most(operator: _Operator, without: _Operator, like: _Tensors = ()) -> _Tensors:
    """Tensors that other ranks do not have: those most like the given ones, or else the longest."""
    alone = [key for key in operator if key not in without]
    return max(alone, key=lambda key: (len({*key} & {*like}), operator[key].total_ns), default=())


def _slower(shared: Collection[_Shared]) -> str:
    pairs = [(one.name, *pair) for one in shared for pair in one.same()]
    usual_ns = sum(usual for _, _, usual in pairs)
    longer = sum(ns for _, ns, _ in pairs) / usual_ns if usual_ns else 0.0
    if longer <= LARGER:
        return ""
    most, _, _ = max(pairs, key=lambda pair: pair[1] - pair[2])
    return (
        f"calls with the same inputs take {longer:.2f} times as long as its peers', most of it in "
        f"{shorten(most, _LONGEST_NAME)}"
    )
