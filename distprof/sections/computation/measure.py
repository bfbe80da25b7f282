"""What computation consists of: by category and pass, and by operator with its FLOP and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.fabric_file import FabricFile
from distprof.costs.operators import Work, parse_inputs, work_of
from distprof.hardware import Sheet
from distprof.intervals import Intervals
from distprof.run.run import Run
from distprof.sections.computation import (
    NO_OPERATORS,
    NO_SHAPES,
    OUTSIDE_MODULES,
    PRODUCTS,
    REST,
    CategoryRow,
    CompiledCode,
    ComputationResult,
    ModuleRow,
    ModuleStats,
    OperatorRow,
    OperatorStats,
    Pass,
    RankComputation,
    Region,
    Roof,
    Saving,
)
from distprof.sections.computation.categories import categories
from distprof.sections.computation.compiled import compiled_code
from distprof.sections.computation.limits import Limits, limits_of
from distprof.sections.computation.modules import modules_of
from distprof.sections.computation.operators import Alike, KernelCalls, rank_kernel_calls
from distprof.sections.computation.savings import FP32_SPEED_UP, Savings, rank_savings
from distprof.sections.computation.shapes import SHORT_TYPES, tensors
from distprof.sections.context import RankAnalyses
from distprof.units import NS_PER_S

__all__ = ["analyze_computation", "rank_computation", "rank_kernel_calls", "rank_savings"]

MOST_ROWS = 1_000
"""Operators with different inputs that are kept of a rank; the rest is summed up by category."""

SMALL_KERNEL = 0.5
"""Share of the multiprocessors below which a kernel is too small for its GPU."""

TABLE_LIMIT = 200
"""Operators of a report; the rest is summed up."""

_TF32 = re.compile(r"tf32|s1688")
"""In the names of kernels that multiply fp32 on tensor cores, at half the speed of bf16."""

_FP8 = re.compile(r"E4m3(?:_Fp32|O)")
"""In the names of TensorRT-LLM's kernels that quantise their inputs, whatever the operator got."""


def rank_computation(
    kernel_calls: KernelCalls | None, savings: Savings | None, windows: Intervals
) -> RankComputation | None:
    """The computation of one rank by operator and module; None if it is not explained."""
    if kernel_calls is None or savings is None:
        return None
    rows = operator_stats(kernel_calls, savings.alike)
    return RankComputation(
        rows=(*rows[:MOST_ROWS], *_rest(rows[MOST_ROWS:])),
        has_operators=bool((kernel_calls.row >= 0).any()),
        savings=savings.stats,
        regions=savings.regions,
        modules=modules_of(kernel_calls),
        graph_ns=int(kernel_calls.counted_ns[kernel_calls.in_graph].sum()),
        compiled=compiled_code(kernel_calls.operators, kernel_calls.host, windows),
    )


def operator_stats(calls: KernelCalls, alike: Alike) -> list[OperatorStats]:
    """Operators with different inputs, longest first."""
    total = np.bincount(alike.group, weights=calls.counted_ns).astype(np.int64)
    num_kernels = np.bincount(alike.group)
    size = len(calls.host) + len(calls.row)
    call = np.where(calls.row >= 0, calls.row, len(calls.host) + np.arange(len(calls.row)))
    num_calls = np.bincount(np.unique(alike.group * size + call) // size)
    return [
        OperatorStats(
            name=alike.names[one],
            inputs=alike.inputs[one],
            category=int(calls.category[at]),
            part=int(calls.part[at]),
            num_calls=int(num_calls[one]),
            num_kernels=int(num_kernels[one]),
            total_ns=int(total[one]),
            kernel=calls.kernel_names[calls.kernel[at]],
            blocks=int(calls.blocks[at]),
        )
        for one in np.argsort(-total, kind="stable").tolist()
        for at in (int(alike.longest[one]),)
        if total[one]
    ]


def _rest(rows: list[OperatorStats]) -> list[OperatorStats]:
    """One row per category and pass."""
    sums: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        found = sums.setdefault((row.category, row.part), [0, 0, 0])
        for n, value in enumerate((row.num_calls, row.num_kernels, row.total_ns)):
            found[n] += value
    return [
        OperatorStats(
            name=REST,
            inputs="",
            category=category,
            part=part,
            num_calls=calls,
            num_kernels=kernels,
            total_ns=ns,
            kernel="",
        )
        for (category, part), (calls, kernels, ns) in sums.items()
    ]


class _Group(msgspec.Struct, kw_only=True):
    """The same row of all ranks."""

    row: OperatorStats  # Of the first rank.
    work: Work  # Of one call.
    num_calls: int = 0
    total_ns: int = 0

    @property
    def flop(self) -> float | None:
        """FLOP of all calls; None if unknown."""
        return None if self.work.flop is None else float(self.work.flop) * self.num_calls


def analyze_computation(
    run: Run, analyses: RankAnalyses, sheet: Sheet, fabric: FabricFile | None = None
) -> ComputationResult:
    """Categories and operators of the explained ranks, over all analysed steps."""
    explained = {
        analysis.rank: analysis.computation
        for analysis in analyses.values()
        if analysis.computation is not None
    }
    if not explained:
        return ComputationResult()
    groups = _groups(row for rank in explained.values() for row in rank.rows)
    limits = limits_of(run, sheet, fabric)
    products = [group for group in groups if _category(group) in PRODUCTS]
    total_ns, product_ns = (sum(group.total_ns for group in some) for some in (groups, products))
    known_ns = sum(group.total_ns for group in products if group.flop is not None)
    recorded_ns = sum(group.total_ns for group in products if group.row.inputs)
    compiled = [rank.compiled for rank in explained.values() if rank.compiled is not None]
    return ComputationResult(
        ranks=tuple(explained),
        num_steps=analyses.num_windows,
        total_ns=total_ns,
        categories=_category_rows(groups),
        operators=_operator_rows(groups, limits, _multiprocessors(run)),
        modules=_module_rows(explained.values(), total_ns),
        graph_ratio=sum(rank.graph_ns for rank in explained.values()) / max(total_ns, 1),
        small_ratio=_small_ratio(groups, _multiprocessors(run)),
        savings=_savings(explained.values()),
        regions=max((rank.regions for rank in explained.values()), key=_repeated_ns),
        flop=_flop(groups),
        recomputed_flop=_flop([one for one in groups if one.row.part == Pass.RECOMPUTATION]),
        precision=_precision(groups),
        slower_types_ns=_slower_types_ns(products, limits, _precision(groups)),
        fp8_bound_ns=_fp8_bound(groups, limits),
        roofs=tuple(Roof(dtype=kind, flops=flops) for kind, flops in limits.peaks.items()),
        memory_bytes_per_s=limits.memory,
        is_measured=limits.is_measured,
        counted_ratio=known_ns / product_ns if product_ns else None,
        recorded_ratio=recorded_ns / product_ns if product_ns else None,
        compiled=reduce(CompiledCode.and_of, compiled) if compiled else None,
        unavailable=(*_unavailable(explained.values(), groups), *limits.unavailable),
    )


def operator_rows(
    stats: Iterable[OperatorStats], run: Run, limits: Limits
) -> tuple[OperatorRow, ...]:
    """Rows of a report, longest first, with what limits them."""
    return _operator_rows(_groups(stats), limits, _multiprocessors(run))


def _groups(stats: Iterable[OperatorStats]) -> list[_Group]:
    """Rows with the same operator, inputs, category and pass, longest first."""
    groups: dict[tuple[str, str, int, int], _Group] = {}
    for row in stats:
        key = (row.name, row.inputs, row.category, row.part)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(row=row, work=work_of(row.name, row.inputs))
        group.num_calls += row.num_calls
        group.total_ns += row.total_ns
    return sorted(groups.values(), key=lambda group: -group.total_ns)


def _fp8_bound(groups: Iterable[_Group], limits: Limits) -> int | None:
    """Time that 16-bit matrix products could save at most if they ran in fp8; None without fp8."""
    fp8 = limits.peaks.get("fp8")
    if fp8 is None:
        return None
    products = [group for group in groups if _category(group) == "gemm"]
    saved = 0.0
    for group in products:
        peak = limits.peaks.get(_multiplied(group.row))
        if _multiplied(group.row) in _SIXTEEN_BITS and peak is not None and peak < fp8:
            saved += group.total_ns * (1 - peak / fp8)
    return round(saved)


_SIXTEEN_BITS = ("bf16", "fp16")


def _category(group: _Group) -> str:
    return tuple(categories())[group.row.category]


def _flop(groups: Iterable[_Group]) -> float | None:
    """Sum of the known FLOP; None if none are known."""
    known = [group.flop for group in groups if group.flop is not None]
    return sum(known) if known else None


def _precision(groups: Iterable[_Group]) -> str:
    """The type that most FLOP multiply; empty if unknown."""
    flop: dict[str, float] = {}
    for group in groups:
        kind = _multiplied(group.row)
        if kind and group.flop:
            flop[kind] = flop.get(kind, 0) + group.flop
    return max(flop, key=lambda kind: flop[kind], default="")


def _slower_types_ns(products: Iterable[_Group], limits: Limits, precision: str) -> int:
    """What products in slower types than that of most FLOP would save in it."""
    peaks, saved = limits.peaks, 0.0
    for group in products:
        kind = _multiplied(group.row)
        if group.row.part == Pass.RECOMPUTATION or kind == precision:
            continue
        if kind == "fp32":
            saved += group.total_ns * (1 - 1 / FP32_SPEED_UP)
        elif kind in peaks and precision in peaks:
            saved += group.total_ns * max(0.0, 1 - peaks[kind] / peaks[precision])
    return round(saved)


def _savings(explained: Iterable[RankComputation]) -> tuple[Saving, ...]:
    """The savings of all ranks together, largest first."""
    rows: dict[str, Saving] = {}
    for one in (saving for rank in explained for saving in rank.savings):
        before = rows.get(one.what)
        rows[one.what] = one
        if before is not None:
            spent, saved = one.spent_ns + before.spent_ns, one.saved_ns + before.saved_ns
            idle = one.idle_ns + before.idle_ns
            rows[one.what] = replace(one, spent_ns=spent, saved_ns=saved, idle_ns=idle)
    return tuple(sorted(rows.values(), key=lambda row: -row.saved_ns))


def _repeated_ns(regions: Iterable[Region]) -> int:
    return sum(region.total_ns for region in regions)


def _module_rows(explained: Iterable[RankComputation], total_ns: int) -> tuple[ModuleRow, ...]:
    """The tree of all ranks, and what is outside of it; empty if no modules were recorded."""
    own: dict[tuple[str, ...], ModuleStats] = {}
    for row in (row for rank in explained for row in rank.modules):
        before = own.get(row.path)
        own[row.path] = row if before is None else _added(before, row)
    if not own:
        return ()
    total, backward = dict.fromkeys(own, 0), dict.fromkeys(own, 0)
    for path, row in own.items():
        for depth in range(len(path)):
            total[path[: depth + 1]] += row.self_ns
            backward[path[: depth + 1]] += row.backward_ns
    longest_first = sorted(
        own, key=lambda path: [(-total[path[: n + 1]], path[n]) for n in range(len(path))]
    )
    rows = [
        ModuleRow(
            name=path[-1],
            depth=len(path) - 1,
            num_modules=own[path].num_modules,
            num_calls=own[path].num_calls,
            total_ns=total[path],
            self_ns=own[path].self_ns,
            backward_ns=backward[path],
        )
        for path in longest_first
    ]
    outside_ns = total_ns - sum(row.self_ns for row in rows)
    outside = ModuleRow(
        name=OUTSIDE_MODULES,
        depth=0,
        num_modules=0,
        num_calls=0,
        total_ns=outside_ns,
        self_ns=outside_ns,
        backward_ns=0,
    )
    return (*rows, outside)


def _added(one: ModuleStats, other: ModuleStats) -> ModuleStats:
    return ModuleStats(
        path=one.path,
        num_modules=max(one.num_modules, other.num_modules),
        num_calls=one.num_calls + other.num_calls,
        self_ns=one.self_ns + other.self_ns,
        backward_ns=one.backward_ns + other.backward_ns,
    )


def _category_rows(groups: Sequence[_Group]) -> tuple[CategoryRow, ...]:
    rows = []
    for number, (name, category) in enumerate(categories().items()):
        own = [group for group in groups if group.row.category == number]
        passes = {
            f"{part.label}_ns": sum(group.total_ns for group in own if group.row.part == part)
            for part in Pass
        }
        if own:
            total_ns = sum(passes.values())
            rows.append(
                CategoryRow(
                    name=name,
                    title=category.title,
                    total_ns=total_ns,
                    counted_ns=sum(one.total_ns for one in own if one.flop is not None),
                    **passes,
                    flop=_flop(own),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def _operator_rows(
    groups: Sequence[_Group], limits: Limits, multiprocessors: int | None
) -> tuple[OperatorRow, ...]:
    shown, rest = groups[:TABLE_LIMIT], groups[TABLE_LIMIT:]
    rows = [
        replace(_operator_row(group, limits), filled_ratio=_filled_ratio(group, multiprocessors))
        for group in shown
    ]
    if rest:
        rows.append(
            OperatorRow(
                name=REST,
                category="other",
                part=Pass.OTHER.label,
                num_calls=sum(group.num_calls for group in rest),
                total_ns=sum(group.total_ns for group in rest),
            )
        )
    return tuple(rows)


def _operator_row(group: _Group, limits: Limits) -> OperatorRow:
    """The row with its limit on this GPU."""
    row, work = group.row, group.work
    seconds = group.total_ns / NS_PER_S
    moved = None if work.bytes is None else work.bytes * group.num_calls
    bound, ratio = limits.judge(_multiplied(row), group.flop, moved, seconds)
    return OperatorRow(
        name=row.name,
        inputs=" · ".join(tensors(row.inputs)),
        category=_category(group),
        part=Pass(row.part).label,
        kernel=row.kernel,
        num_calls=group.num_calls,
        total_ns=group.total_ns,
        flop=work.flop,
        bytes=work.bytes,
        flops=None if group.flop is None else group.flop / seconds,
        bytes_per_s=None if moved is None else moved / seconds,
        bound=bound,
        peak_ratio=ratio,
    )


def _multiprocessors(run: Run) -> int | None:
    """Multiprocessors of each GPU; None if unknown, or if ranks differ."""
    found = {rank.device.num_multiprocessors for rank in run.ranks}
    return found.pop() if len(found) == 1 else None


def _filled_ratio(group: _Group, multiprocessors: int | None) -> float | None:
    blocks = group.row.blocks
    return min(blocks / multiprocessors, 1.0) if multiprocessors and blocks > 0 else None


def _small_ratio(groups: Sequence[_Group], multiprocessors: int | None) -> float | None:
    ratios = [(_filled_ratio(group, multiprocessors), group.total_ns) for group in groups]
    known = sum(ns for ratio, ns in ratios if ratio is not None)
    small = sum(ns for ratio, ns in ratios if ratio is not None and ratio < SMALL_KERNEL)
    return small / known if known else None


def _multiplied(row: OperatorStats) -> str:
    """The type that it multiplies, as limits name it; empty if unknown."""
    inputs = parse_inputs(row.inputs)
    kind = inputs.first_type if inputs is not None else ""
    if kind.startswith("c10::Float8") or _FP8.search(row.kernel):
        return "fp8"
    return "tf32" if kind == "float" and _TF32.search(row.kernel) else SHORT_TYPES.get(kind, kind)


def _unavailable(explained: Iterable[RankComputation], groups: Sequence[_Group]) -> tuple[str, ...]:
    if not any(rank.has_operators for rank in explained):
        return (NO_OPERATORS,)
    return () if any(group.row.inputs for group in groups) else (NO_SHAPES,)
