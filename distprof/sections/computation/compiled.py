"""What rows of ``torch.compile`` show: compiled regions, graph breaks and compilations, per rank.

A region lasts until its function returns. Code after a graph break is a function of its own, which
the broken one calls, so its region lies inside. Regions side by side prove no graph break: they may
be functions that were compiled one by one.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered
from distprof.schema import Int64Array, Table
from distprof.sections.computation.categories import UNKNOWN
from distprof.sections.computation.operators import Operators
from distprof.sections.computation.result import CompiledCode

_REGION = re.compile(
    r"Torch-Compiled Region(?:: (?:!\d+/)?(?P<frame>\d+)/(?P<version>\d+)(?:_\d+)?)?"
)
"""A compiled function; unless PyTorch is old with its number and its version, both from 0."""

_COMPILES = re.compile(
    r"(?:entire_frame_compile|_compile\.(?:<locals>\.)?compile_inner)(?: \(dynamo_timed\))?"
)
"""Compilation of one function; rows of both names are inside each other."""


def compiled_code(operators: Operators, host: Table, windows: Intervals) -> CompiledCode | None:
    """Counts over the windows, disjoint and in order; None if nothing there was compiled."""
    names = host.coded("name")
    codes = names.codes[operators.row]
    matches = [_REGION.fullmatch(name) for name in names.values]
    start = operators.start_ns
    counted = covered(Intervals(start, start + 1), windows) > 0
    is_region = np.array([match is not None for match in matches], np.bool_)[codes]
    is_compiling = np.array([bool(_COMPILES.fullmatch(name)) for name in names.values], np.bool_)
    regions = np.flatnonzero(is_region & counted)
    compiles = np.flatnonzero(is_compiling[codes] & counted)
    if not len(regions) and not len(compiles):
        return None
    broken = _around(operators, is_region, regions)
    numbered = [matches[code] for code in np.unique(codes[regions]).tolist()]
    versions = [
        (int(one["frame"]), int(one["version"])) for one in numbered if one and one["frame"]
    ]
    return CompiledCode(
        num_regions=len(regions),
        num_breaks=len(np.unique(broken[broken >= 0])),
        num_functions=len({frame for frame, _ in versions}),
        num_compiles=int((_around(operators, is_compiling[codes], compiles) < 0).sum()),
        most_versions=1 + max((version for _, version in versions), default=-1),
    )


def _around(operators: Operators, chosen: NDArray[np.bool_], rows: Int64Array) -> Int64Array:
    """The innermost chosen operator around each row, itself excluded; UNKNOWN without one."""
    place = np.where(chosen, np.arange(len(chosen)), UNKNOWN).astype(np.int32)
    parent = operators.parent[rows]
    around = operators.inherited(place)[parent] if len(rows) else parent
    return np.where(parent >= 0, around, UNKNOWN).astype(np.int64)
