"""What rows of ``torch.compile`` show: compiled regions, graph breaks and compilations, per rank.

A region lasts until its function returns. Code after a graph break is a function of its own, which
the broken one calls, so its region runs inside. Regions side by side prove no graph break: they may
be functions that were compiled one by one.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered
from distprof.schema import Int64Array, Table
from distprof.sections.computation import CompiledCode
from distprof.sections.computation.categories import UNKNOWN
from distprof.sections.computation.operators import Operators

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
    broken = _around(operators, is_region, regions)
    called = [matches[code] for code in np.unique(names.codes[operators.row[regions]]).tolist()]
    numbered = [one for one in called if one is not None and one["frame"]]
    return CompiledCode(
        num_regions=len(regions),
        num_breaks=len(np.unique(broken[broken >= 0])),
        num_functions=len({one["frame"] for one in numbered}),
        num_compiles=int((_around(operators, is_compiling, compiles) < 0).sum()),
        most_versions=1 + max((int(one["version"]) for one in numbered), default=-1),
    )


def _inside(operators: Operators, chosen: NDArray[np.bool_], windows: Intervals) -> Int64Array:
    """The chosen operators that start in the windows."""
    rows = np.flatnonzero(chosen)
    start = operators.start_ns[rows]
    return rows[covered(Intervals(start, start + 1), windows) > 0]


def _around(operators: Operators, chosen: NDArray[np.bool_], rows: Int64Array) -> Int64Array:
    """The innermost chosen operator around each row, itself excluded; UNKNOWN without one."""
    parent = operators.parent[rows]
    return np.where(parent >= 0, operators.innermost(chosen)[parent], UNKNOWN).astype(np.int64)
