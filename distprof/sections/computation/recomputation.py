"""Which forward work the backward pass repeats, and in which order its results are worth keeping.

A region is what one node of the backward pass computes again: a checkpointed function.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate, groupby
from statistics import fmean

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.schema import ABSENT
from distprof.sections.computation import Pass, Region
from distprof.sections.computation.groups import Change, Groups
from distprof.sections.computation.modules import is_module
from distprof.sections.computation.operators import BACKWARD

MOST_REGIONS = 1_000
"""Regions of one backward pass that are kept."""

_MOST_BYTES = 1 << 56

_WORTH_KEEPING = 0.1
"""Share of the recomputed time from which an operator's results are worth keeping first."""


def recomputed_regions(groups: Groups) -> tuple[Region, ...]:
    """Regions of one backward pass, in the order in which to keep their results.

    Those come first that save most time per byte. Of equal ones the last comes first, because its
    results are needed for the shortest time. Of different backward passes, the longest is taken.
    """
    calls, operators = groups.calls, groups.calls.operators
    if not (calls.part == Pass.RECOMPUTATION).any():
        return ()
    is_node = calls.host.coded("name").finds(BACKWARD)[operators.row]
    node = np.where(calls.inside >= 0, operators.innermost(is_node)[calls.inside], ABSENT)
    passes = _backward_passes(groups, node)
    if not passes:
        return ()
    alike = grouped([(tuple(_work(groups, each) for each in one.regions), one) for one in passes])
    work, found = max(alike.items(), key=lambda item: sum(one.spent_ns for one in item[1]))
    times: dict[_Work, list[float]] = defaultdict(list)
    for one in found:
        for region, kernels in zip(work, one.regions, strict=True):
            times[region].append(float(calls.own_ns[kernels].sum()))
    names, alive = _names(groups, is_node), _most_alive(passes)
    rows = [
        Region(
            name=names.get(int(node[kernels[0]]), ""),
            place=len(work) - number,
            num_bytes=min(alive * _written(groups, region), _MOST_BYTES),
            total_ns=round(fmean(times[region])),
        )
        for number, (region, kernels) in enumerate(zip(work, found[0].regions, strict=True))
    ]
    return tuple(sorted(rows, key=lambda row: (-row.ns_per_byte, -row.place))[:MOST_REGIONS])


_Kernels = list[int]
_Work = frozenset[tuple[int, int]]
"""Groups of the operators, and how often each is called."""


class _Backward(msgspec.Struct, frozen=True, kw_only=True):
    """One backward pass."""

    forward_ns: float  # Time of the forward pass right before it.
    spent_ns: float  # Time of its regions.
    regions: list[_Kernels]  # Kernels of each region, in order of launch.


def _backward_passes(groups: Groups, node: NDArray[np.int32]) -> list[_Backward]:
    """The backward passes that recompute, in order; work of the forward pass is between them."""
    calls, passes, forward_ns = groups.calls, [], 0.0
    known = np.flatnonzero((node >= 0) | (calls.part == Pass.FORWARD))
    order = known[np.argsort(calls.launched_ns[known], kind="stable")]
    for is_forward, kernels in groupby(order.tolist(), lambda at: calls.part[at] == Pass.FORWARD):
        inside = list(kernels)
        if is_forward:
            forward_ns += float(calls.own_ns[inside].sum())
            continue
        regions: dict[int, _Kernels] = defaultdict(list)
        for kernel in inside:
            if calls.part[kernel] == Pass.RECOMPUTATION and calls.counted_ns[kernel]:
                regions[int(node[kernel])].append(kernel)
        if regions:
            spent = sum(float(calls.own_ns[one].sum()) for one in regions.values())
            passes.append(
                _Backward(forward_ns=forward_ns, spent_ns=spent, regions=list(regions.values()))
            )
            forward_ns = 0.0
    return passes


def _most_alive(passes: list[_Backward]) -> int:
    """Micro-batches whose backward pass is still to come, at most: more than one in a pipeline."""
    mean_ns = fmean(one.forward_ns for one in passes)
    done = accumulate(one.forward_ns for one in passes)
    return max(
        (round(ns / mean_ns) - number for number, ns in enumerate(done) if mean_ns), default=1
    )


def _work(groups: Groups, kernels: _Kernels) -> _Work:
    rows = {(int(groups.calls.row[at]), int(groups.group[at])) for at in kernels}
    return frozenset(Counter(group for _, group in rows).items())


def _written(groups: Groups, work: _Work) -> int:
    return sum((groups.work[group].written or 0) * times for group, times in work)


def _names(groups: Groups, is_node: NDArray[np.bool_]) -> dict[int, str]:
    """The outermost modules called in each node of the backward pass."""
    operators, host = groups.calls.operators, groups.calls.host
    is_call = is_module(operators, host)
    around = operators.innermost(is_node | is_call)
    above = operators.parent
    names, found = host.coded("name"), dict[int, str]()
    for at in np.flatnonzero(is_call & (above >= 0)).tolist():
        node = int(around[above[at]])
        if node >= 0 and is_node[node]:
            name = names.values[names.codes[operators.row[at]]].removeprefix("nn.Module: ")
            first = found.setdefault(node, name).partition(" to ")[0]
            found[node] = name if name == first else f"{first} to {name}"
    return found


def without_recomputation(groups: Groups, regions: tuple[Region, ...]) -> Change | None:
    """All that the backward pass repeats, and the longer operator to keep the results of first."""
    chosen = groups.calls.part == Pass.RECOMPUTATION
    if not chosen.any():
        return None
    spent = np.bincount(groups.group[chosen], groups.calls.own_ns[chosen])
    kept = (group for group in range(len(spent)) if groups.work[group].written)
    worth = [group for group in kept if spent[group] >= _WORTH_KEEPING * spent.sum()]
    each = spent / groups.num_calls[: len(spent)]
    first = max(worth, key=lambda n: each[n] / (groups.work[n].written or 1), default=None)
    return Change(
        share=chosen.astype(float),
        num_bytes=min(sum(region.num_bytes for region in regions), _MOST_BYTES),
        size="" if first is None else groups.call(first),
    )
