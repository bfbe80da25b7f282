"""The story of one operator or kernel of a rank: its calls, kernels and callers."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from math import ceil, prod
from pprint import pformat
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.fabric_file import FabricFile
from distprof.artefacts.record import Record
from distprof.costs.operators import parse_inputs, whole_numbers, work_of
from distprof.errors import InputError, UsageError
from distprof.escape import plain, shorten
from distprof.hardware import Sheet
from distprof.ingest.kineto.arguments import find_launches, find_strides
from distprof.ingest.kineto.events import STEP_PREFIX
from distprof.run.run import Rank, Run
from distprof.run.tables import parts_by
from distprof.schema import ABSENT
from distprof.sections.base import Result
from distprof.sections.computation import OperatorRow, OperatorStats
from distprof.sections.computation.groups import Groups
from distprof.sections.computation.measure import limits_of, operator_rows, operator_stats
from distprof.sections.computation.modules import module_class
from distprof.sections.computation.operators import (
    KernelCalls,
    completed_inputs,
    kernels_of,
    with_grids,
)
from distprof.sections.measure_run import analysed_windows, capture_window
from distprof.units import format_duration
from distprof.verbs import Displayed
from distprof.version import __version__

_FEW_BLOCKS = 0.5
"""Waves below which a kernel is too small for its GPU."""


class KernelTime(Record, frozen=True, kw_only=True):
    """One kernel of the operator."""

    name: str
    count: int  # In all analysed steps.
    total_ns: int
    median_ns: int
    # Times that its thread blocks fill the GPU, of its longest launch; null if unknown.
    waves: float | None = None

    @property
    def unused_ratio(self) -> float:
        """Share of the places for thread blocks that its last or only wave leaves empty."""
        if self.waves is None or _FEW_BLOCKS <= self.waves < 1:
            return 0.0
        return 1 - self.waves / ceil(self.waves)


class Caller(Record, frozen=True, kw_only=True):
    """Operators and annotations around the operator."""

    path: str  # From outside to inside, joined by ``>``; empty if nothing was around it.
    num_calls: int
    total_ns: int


class OperatorStory(Displayed, Result, frozen=True, kw_only=True):
    """One operator or kernel on one rank, all analysed steps together."""

    schema: str = "distprof.operator/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The input, as the user named it.
    name: str  # Its full name.
    is_kernel: bool  # Whether it is a kernel rather than an operator.
    rank: int
    device: str  # Name of the GPU.
    num_steps: int  # Analysed steps.
    total_ns: int  # Time of its kernels: the sum of the calls, of the kernels and of the callers.
    computation_ns: int  # Time of all computation kernels of the rank.
    calls: tuple[OperatorRow, ...]  # Its calls by inputs and pass, longest first.
    kernels: tuple[KernelTime, ...]  # Longest first.
    callers: tuple[Caller, ...]  # Longest first.
    is_measured: bool = False  # Whether ``distprof bench --compute`` measured its limits.


_MOST_LISTED = 12
_MOST_AROUND = 4
"""Operators around a caller that are named."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The story, and what a script needs in addition."""

    story: OperatorStory
    calls: list[OperatorStats]  # As in the story.
    trace: str  # File of the rank.


def tell(
    run: Run, name: str, *, sheet: Sheet, fabric: FabricFile | None = None, rank: int | None = None
) -> Told:
    """The story of the operator or kernel whose name is, or uniquely contains, ``name``."""
    windows = analysed_windows(run)
    chosen = _rank(run, windows, rank)
    tables = chosen.tables.load()
    found = windows.get(chosen.rank)
    whole = capture_window(tables.activity) if found is None else found
    every = None
    if chosen.device.name != "cpu":
        every = kernels_of(tables, whole, lambda: chosen.tables.load(every_host_row=True).host)
    if every is None:
        raise InputError(
            chosen.path,
            expected="computation kernels of a GPU",
            found="none",
            fix="capture with torch.profiler.ProfilerActivity.CUDA",
        )
    full, is_kernel = _resolve(name, _times(every))
    calls = _taken(every, every.kernels.equals(full)) if is_kernel else _of_operator(every, full)
    limits = limits_of(run, sheet, fabric)
    stats = operator_stats(Groups(calls))
    rows = operator_rows(stats, limits)
    if is_kernel:
        whole = every.counted_ns[np.isin(every.row, calls.row)].sum()
        if calls.counted_ns.sum() < _LEAST_WHOLE * whole:  # its operators spend more in others
            nothing = dict.fromkeys(("flop", "bytes", "flops", "bytes_per_s", "peak_ratio"))
            rows = tuple(replace(row, bound="", **nothing) for row in rows)
    story = OperatorStory(
        distprof_version=__version__,
        source=run.source,
        name=full,
        is_kernel=is_kernel,
        rank=chosen.rank,
        device=chosen.device.name,
        num_steps=1 if found is None else found.size,
        total_ns=int(calls.counted_ns.sum()),
        computation_ns=int(every.counted_ns.sum()),
        calls=rows,
        kernels=_kernels(calls, chosen.path, chosen.device.num_multiprocessors),
        callers=_callers(calls),
        is_measured=limits.is_measured,
    )
    return Told(story=story, calls=stats, trace=chosen.path)


def _rank(run: Run, windows: Iterable[int], wanted: int | None) -> Rank:
    ranks = {rank.rank: rank for rank in run.ranks}
    number = next(iter(windows), min(ranks)) if wanted is None else wanted
    if number not in ranks:
        raise UsageError(f"no rank {number} in {run.source}: choose from {sorted(ranks)[:20]}")
    return ranks[number]


def _resolve(name: str, times: dict[tuple[str, bool], int]) -> tuple[str, bool]:
    """The full name that is meant, and whether it is that of a kernel."""
    for fits in (
        lambda one: one == name,
        lambda one: one.rpartition("::")[2] == name,
        lambda one: name.lower() in one.lower(),
    ):
        found = [key for key in times if fits(key[0])]
        if len(found) == 2 and found[0][0] == found[1][0]:  # as operator and kernel of Triton
            found = [key for key in found if not key[1]][:1]
        if len(found) == 1:
            return found[0]
        if found:
            found = sorted(found, key=lambda key: -times[key])
            lines = [f"  {format_duration(times[key])}  {shorten(key[0], 100)}" for key in found]
            more = [f"  and {len(lines) - _MOST_LISTED} more"] * (len(lines) > _MOST_LISTED)
            text = f"{plain(name)!r} fits {len(found)} operators and kernels: name one in full"
            raise UsageError("\n".join((text, *lines[:_MOST_LISTED], *more)))
    near = difflib.get_close_matches(name, [one for one, _ in times], n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(plain(one) for one in near)}?" if near else ""
    raise UsageError(f"no operator or kernel {plain(name)!r} in the analysed steps{hint}")


def _times(calls: KernelCalls) -> dict[tuple[str, bool], int]:
    """Time of each operator that launched kernels, itself or inside it, and of each kernel."""
    tree, names = calls.operators, calls.host.coded("name")
    is_operator = calls.host.coded("category").equals("cpu_op")[tree.row]
    place, kernels = calls.inside, np.arange(len(calls.inside))
    pairs = []  # kernel, and name of an operator around its launch
    while len(kernels := kernels[place >= 0]):
        place = place[place >= 0]
        known = is_operator[place]
        codes = names.codes[tree.row[place[known]]]
        pairs.append(kernels[known] * len(names.values) + codes)
        place = tree.parent[place].astype(np.int64)
    kernel, code = np.divmod(
        np.unique(np.concatenate(pairs or [kernels])), max(len(names.values), 1)
    )
    sums = np.bincount(code, calls.counted_ns[kernel], len(names.values)).tolist()
    times = {(name, False): int(ns) for name, ns in zip(names.values, sums, strict=True) if ns}
    texts = calls.kernels.values
    sums = np.bincount(calls.kernels.codes, calls.counted_ns, len(texts)).tolist()
    return times | {(name, True): int(ns) for name, ns in zip(texts, sums, strict=True) if ns}


def _of_operator(calls: KernelCalls, name: str) -> KernelCalls:
    """Calls of all kernels inside an operator; autocast calls it inside itself."""
    tree = calls.operators
    outer = tree.outermost(calls.host.coded("name").equals(name)[tree.row])
    owner = np.where(calls.inside >= 0, outer[calls.inside], ABSENT)
    taken = _taken(replace(calls, inside=owner.astype(np.int64)), owner >= 0)
    row = tree.row[taken.inside].astype(np.int64)
    inputs = completed_inputs(tree, row, calls.host)
    most = taken.category[np.argmax(taken.own_ns)]  # a call is one row, whatever is inside
    category = np.full_like(taken.category, most)
    return with_grids(replace(taken, row=row, inputs=inputs, category=category))


_LEAST_WHOLE = 0.95


def _taken(calls: KernelCalls, chosen: NDArray[np.bool_]) -> KernelCalls:
    columns = {
        name: value[chosen]
        for name, value in msgspec.structs.asdict(calls).items()
        if isinstance(value, np.ndarray)
    }
    kernels, inputs = calls.kernels.take(chosen), calls.inputs.take(chosen)
    return replace(calls, kernels=kernels, inputs=inputs, **columns)


def _kernels(calls: KernelCalls, trace: str, multiprocessors: int | None) -> tuple[KernelTime, ...]:
    counted = np.flatnonzero(calls.counted_ns > 0)
    launched = parts_by(calls.kernels.codes[counted], counted)
    launches = find_launches(trace, [calls.kernels.values[code] for code in launched])
    gpu = launches.pop("", {})
    rows = []
    for code, own in launched.items():
        ns, name = calls.counted_ns[own], calls.kernels.values[code]
        resident = resident_blocks(launches.get(name, {}), gpu)
        most = int(calls.blocks[own][np.argmax(ns)])
        at_once = resident * (multiprocessors or 0)
        rows.append(
            KernelTime(
                name=name,
                count=len(ns),
                total_ns=int(ns.sum()),
                median_ns=int(np.median(ns)),
                waves=most / at_once if at_once and most > 0 else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def resident_blocks(launch: dict[str, Any], gpu: dict[str, Any]) -> int:
    """Thread blocks of a kernel that one multiprocessor of an NVIDIA GPU holds; 0 if unknown.

    As in CUDA's occupancy calculator, with as much shared memory as the multiprocessor has.
    """
    try:
        warps = -(-prod(launch["block"]) // _WARP)
        registers = -(-launch["registers per thread"] * _WARP // _REGISTERS) * _REGISTERS
        version = gpu["computeMajor"], gpu["computeMinor"]
        reserved = _RESERVED_BYTES if version >= _AMPERE else 0
        shared = -(-(launch["shared memory"] + reserved) // _SHARED_BYTES) * _SHARED_BYTES
        return int(
            min(
                _MOST_RESIDENT.get(version, _USUAL_RESIDENT),
                gpu["maxThreadsPerMultiprocessor"] // _WARP // warps,
                gpu["regsPerMultiprocessor"] // _PARTS // registers * _PARTS // warps,
                gpu["sharedMemPerMultiprocessor"] // shared if shared else _USUAL_RESIDENT,
            )
        )
    except (KeyError, TypeError, ZeroDivisionError):
        return 0


_WARP, _REGISTERS, _PARTS = 32, 256, 4
"""Threads of a warp, registers that it is given at once, and parts of a multiprocessor."""

_SHARED_BYTES, _RESERVED_BYTES, _AMPERE = 128, 1024, (8, 0)
"""Shared memory is given in pieces; from Ampere on, CUDA reserves some for each block."""

_USUAL_RESIDENT, _MOST_RESIDENT = 32, {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}
"""Blocks of a multiprocessor at most, by compute capability."""


def _callers(calls: KernelCalls) -> tuple[Caller, ...]:
    """What is around each call; those of a kernel include the operator that launched it."""
    tree, names = calls.operators, calls.host.coded("name")
    found: dict[str, tuple[set[int], int]] = {}
    for place, ns in zip(calls.inside.tolist(), calls.counted_ns.tolist(), strict=True):
        path: list[str] = []
        at = int(tree.parent[place]) if place >= 0 else -1
        while at >= 0 and len(path) < _MOST_AROUND:
            name = module_class(names.at(tree.row[at]))
            if path[-1:] != [name]:
                path.append(name)
            at = int(tree.parent[at])
        text = " > ".join(one for one in reversed(path) if not one.startswith(STEP_PREFIX))
        places, total = found.get(text, (set(), 0))
        places |= {place} if ns else set()
        found[text] = places, total + ns
    rows = [Caller(path=p, num_calls=len(n), total_ns=ns) for p, (n, ns) in found.items() if ns]
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


_NAME = re.compile(r"[A-Za-z_]\w{0,99}::[A-Za-z_]\w{0,99}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][\w:<> ]{0,39}|", re.ASCII)
_VALUE = re.compile(r"[\w.,+\-\[\]() ]{0,400}", re.ASCII)
_DEVICE = re.compile(r"[\w .()/-]{1,99}", re.ASCII)
_MOST_ELEMENTS = 1 << 36


def script_of(told: Told, which: int) -> str:
    """The script for one row of the story's calls, counted from 1."""
    rows = told.calls
    if not 1 <= which <= len(rows):
        raise InputError(
            told.trace, expected=f"a call from 1 to {len(rows)}", found=str(which), fix="--call N"
        )
    stats = rows[which - 1]
    inputs = parse_inputs(stats.inputs)
    if _NAME.fullmatch(stats.name) is None:
        raise _refusal(told, f"{shorten(plain(stats.name), 80)!r}, no operator of PyTorch")
    if not any(inputs.types):
        raise _refusal(told, f"{stats.name} without sizes and types of its inputs")
    if sum(prod(size) for size in inputs.sizes if size is not None) > _MOST_ELEMENTS:
        raise _refusal(told, f"{stats.name} on more than {_MOST_ELEMENTS:,} elements")
    strides = find_strides(told.trace, stats.name, json.loads(stats.inputs)[0]) or []
    count, work = len(inputs.sizes), work_of(stats.name, stats.inputs)
    device = told.story.device
    call = {
        "operator": stats.name,
        "sizes": [list(size) if size is not None else [] for size in inputs.sizes],
        "types": [kind if _TYPE.fullmatch(kind) else "" for kind in inputs.types],
        "values": [text if _VALUE.fullmatch(text) else "" for text in inputs.values],
        "strides": list(map(whole_numbers, strides)) if len(strides) == count else None,
        "traced_ns": stats.total_ns / stats.num_calls,
        "device": device if _DEVICE.fullmatch(device) else "the GPU of the trace",
        "flop": work.flop,
        "bytes": work.bytes,
    }
    template = files("distprof.verbs.op").joinpath("call.template").read_text("utf-8")
    return template.replace("@CALL@", pformat(call, width=99, sort_dicts=False))


def _refusal(told: Told, found: str) -> InputError:
    return InputError(
        told.trace,
        expected="an operator with recorded sizes and types, which a script can call again",
        found=found,
        fix="capture with record_shapes=True, and name an operator that launches kernels itself, "
        "such as aten::addmm instead of aten::linear",
    )
