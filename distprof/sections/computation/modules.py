"""From operators to what calls them: modules, and code of ``torch.compile``; on one rank.

Calls of an ``nn.Module`` are rows of the trace if stacks were recorded. Where there are none,
annotations of the user stand for them if they look like names of modules (``layers.3.attention``).
Modules of one class under the same one count together: ``Block`` instead of forty-eight blocks.

A region of compiled code lasts until its function returns. Code after a graph break is a function
of its own, which the broken one calls, so its region runs inside. Regions side by side prove no
graph break: they may be functions that were compiled one by one.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered
from distprof.run.tables import MODULE_CATEGORY
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.computation import CompiledCode, ModuleStats, Pass
from distprof.sections.computation.operators import BACKWARD, OF_AUTOGRAD, KernelCalls, Operators

MOST_PATHS = 500
"""Paths that are kept apart; what is called below further ones counts for the module above."""

_CALL = re.compile(r"nn\.Module: (?P<module>.+?)(?:_\d+)?", re.DOTALL)

_ANNOTATION = re.compile(r"(?!\w+DataParallel\.)[A-Za-z_]\w*(?:\.\w+)+")

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class _Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of modules among the operators of a rank.

    A module that the backward pass recomputes is where its forward call was: on a thread of its
    own, nothing calls it.
    """

    is_call: NDArray[np.bool_]  # Whether each row of the operators is the call of a module.
    path: NDArray[np.int32]  # The innermost path around each row, itself included; ABSENT outside.
    paths: tuple[tuple[int, str], ...]  # The path above each, ABSENT without one, and its module.


def modules_of(calls: KernelCalls) -> tuple[ModuleStats, ...]:
    """Time by path of modules, in order of first call; empty if none were recorded."""
    operators = calls.operators
    tree = _tree(operators, calls.host)
    if not tree.paths:
        return ()
    around = _around(operators, calls.host, tree.is_call)
    counted = (calls.inside >= 0) & (calls.counted_ns > 0)
    called = np.where(counted, around[calls.inside], ABSENT)
    known = np.flatnonzero((called >= 0) & (tree.path[called] >= 0))
    path, spent = tree.path[called[known]], calls.counted_ns[known]
    is_backward = calls.part[known] == Pass.BACKWARD
    size = len(tree.paths)
    own = np.bincount(path, weights=spent, minlength=size).astype(np.int64)
    backward = np.bincount(path, weights=spent * is_backward, minlength=size).astype(np.int64)
    has_kernels = np.zeros(len(tree.is_call), np.bool_)  # themselves, or calls inside them
    has_kernels[called[known]] = True
    for rows in operators.levels[::-1]:
        outer = operators.parent[rows[has_kernels[rows]]]
        has_kernels[outer[outer >= 0]] = True
    used = np.flatnonzero(has_kernels & tree.is_call & (tree.path >= 0))
    num_calls = np.bincount(tree.path[used], minlength=size)
    names = calls.host.coded("name").codes[operators.row[used]].astype(np.int64)
    modules = np.unique(names * size + tree.path[used]) % size
    num_modules = np.bincount(modules, minlength=size)
    paths: list[tuple[str, ...]] = []
    for above, name in tree.paths:
        paths.append((*(paths[above] if above != ABSENT else ()), name))
    started = [paths[number] for number in np.flatnonzero(num_calls)]
    shown = {one[:depth] for one in started for depth in range(1, len(one) + 1)}
    return tuple(
        ModuleStats(
            path=one,
            num_modules=int(num_modules[number]),
            num_calls=int(num_calls[number]),
            self_ns=int(own[number]),
            backward_ns=int(backward[number]),
        )
        for number, one in enumerate(paths)
        if one in shown
    )


def is_module(operators: Operators, host: Table) -> NDArray[np.bool_]:
    """Whether each row of the operators is the call of a module, or an annotation instead."""
    category, names = host.coded("category"), host.coded("name")
    is_call = category.equals(MODULE_CATEGORY)
    if not is_call.any():
        is_named = names.where([_ANNOTATION.fullmatch(name) is not None for name in names.values])
        is_call = category.equals("annotation") & is_named
    return is_call[operators.row]


def _tree(operators: Operators, host: Table) -> _Tree:
    names, is_call = host.coded("name"), is_module(operators, host)
    labels = [_NUMBER.sub("*", module_class(name)) for name in names.values]
    name = names.codes[operators.row]
    numbers: dict[tuple[int, str], int] = {}
    again = operators.innermost(names.finds(BACKWARD)[operators.row]) >= 0
    home: dict[int, int] = {}
    for _ in range(2):  # a module that is recomputed has been found elsewhere by then
        path = np.full(len(operators.row), ABSENT, np.int32)
        for rows in operators.levels:
            path[rows] = operators.above(path, rows)
            for row in rows[is_call[rows]].tolist():
                around, module = int(path[row]), int(name[row])
                if not again[row]:
                    home.setdefault(module, around)
                elif around == ABSENT:
                    around = home.get(module, ABSENT)
                key = (around, labels[module])
                if key in numbers or len(numbers) < MOST_PATHS:
                    path[row] = numbers.setdefault(key, len(numbers))
    return _Tree(is_call=is_call, path=path, paths=tuple(numbers))


def module_class(name: str) -> str:
    """The class of a called module; any other name as it is."""
    found = _CALL.fullmatch(name)
    return found["module"] if found else name


def _around(operators: Operators, host: Table, is_call: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The innermost call of a module around each operator, that of its forward pass in backward."""
    around = operators.innermost(is_call)
    own = np.where(is_call, np.arange(len(is_call)), ABSENT).astype(np.int32)
    names = host.coded("name")
    is_backward, numbered = names.finds(BACKWARD), host["sequence"] >= 0
    starts = np.flatnonzero((numbered & is_backward)[operators.row])
    is_forward = numbered & ~is_backward & ~names.finds(OF_AUTOGRAD)
    forward = np.flatnonzero(is_forward[operators.row])
    # The last forward operator with the number of each backward one that began before it. Those
    # between two nodes of the graph share the number of the second, which the last of them made.
    sequence, rows = host["sequence"][operators.row], np.concatenate((forward, starts))
    order = np.lexsort((operators.start_ns[rows], sequence[rows]))
    ordered = rows[order]
    last = np.maximum.accumulate(np.where(order < len(forward), np.arange(len(order)), ABSENT))
    fits = (last >= 0) & (sequence[ordered[last]] == sequence[ordered]) & (order >= len(forward))
    own[ordered[fits]] = around[ordered[last[fits]]]
    return operators.inherited(own)


# Compiled code ------------------------------------------------------------------------------------

_REGION = re.compile(
    r"Torch-Compiled Region(?:: (?:!\d+/)?(?P<frame>\d+)/(?P<version>\d{1,9})(?:_\d+)?)?"
)
"""A compiled function; unless PyTorch is old with its number and its version, both from 0."""

_COMPILES = re.compile(
    r"^(?:entire_frame_compile|_compile\.(?:<locals>\.)?compile_inner)(?: \(dynamo_timed\))?$"
)
"""Compilation of one function; rows of both names are inside each other."""


def compiled_code(operators: Operators, host: Table, windows: Intervals) -> CompiledCode | None:
    """Counts over the windows, disjoint and in order; None if nothing there was compiled."""
    names = host.coded("name")
    matches = [_REGION.fullmatch(name) for name in names.values]
    is_region = names.where([match is not None for match in matches])[operators.row]
    is_compiling = names.finds(_COMPILES)[operators.row]
    regions = _inside(operators, is_region, windows)
    compiles = _inside(operators, is_compiling, windows)
    if not len(regions) and not len(compiles):
        return None
    broken = operators.above(operators.innermost(is_region), regions)
    inside = operators.above(operators.innermost(is_compiling), compiles)
    called = [matches[code] for code in np.unique(names.codes[operators.row[regions]]).tolist()]
    numbered = [one for one in called if one is not None and one["frame"]]
    return CompiledCode(
        num_regions=len(regions),
        num_breaks=len(np.unique(broken[broken >= 0])),
        num_functions=len({one["frame"] for one in numbered}),
        num_compiles=int((inside < 0).sum()),
        most_versions=1 + max((int(one["version"]) for one in numbered), default=-1),
    )


def _inside(operators: Operators, chosen: NDArray[np.bool_], windows: Intervals) -> Int64Array:
    """The chosen operators that start in the windows."""
    rows = np.flatnonzero(chosen)
    start = operators.start_ns[rows]
    return rows[covered(Intervals(start, start + 1), windows) > 0]
