"""What computation consists of: by category and pass, and by operator with its FLOP and bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.fabric_file import FabricFile
from distprof.artefacts.record import made_from
from distprof.costs.operators import parse_inputs, work_of
from distprof.hardware import Sheet, recognise_gpu
from distprof.intervals import Intervals
from distprof.run.run import Run
from distprof.run.tables import RankTables
from distprof.schema import Table
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
    added,
)
from distprof.sections.computation.categories import categories, number_of
from distprof.sections.computation.groups import Groups
from distprof.sections.computation.modules import compiled_code, modules_of
from distprof.sections.computation.operators import KernelCalls, kernels_of
from distprof.sections.computation.savings import FP32_SPEED_UP, Savings, rank_savings
from distprof.sections.computation.shapes import SHORT_TYPES, tensors
from distprof.sections.context import RankAnalyses, RankContext
from distprof.units import NS_PER_S

__all__ = ["analyze_computation", "rank_computation", "rank_kernel_calls", "rank_savings"]

MOST_ROWS = 1_000
"""Operators with different inputs that are kept of a rank; the rest is summed up by category."""

SMALL_KERNEL = 0.5
"""Share of the multiprocessors below which a kernel is too small for its GPU."""

TABLE_LIMIT = 200
"""Operators of a report; the rest is summed up."""

_MOST_RATIO = 1.05
"""Share of a measured limit up to which an operator reached it: other sizes are faster."""

_TF32 = re.compile(r"tf32|s1688")
"""In the names of kernels that multiply fp32 on tensor cores, at half the speed of bf16."""

_FP8 = re.compile(r"E4m3(?:_Fp32|O)")
"""In the names of TensorRT-LLM's kernels that quantise their inputs, whatever the operator got."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What operators are compared with; empty if the GPU is unknown."""

    peaks: dict[str, float] = {}  # FLOP per second by type.
    memory: float | None = None  # Bytes per second.
    is_measured: bool = False  # Whether ``distprof bench --compute`` measured them.
    multiprocessors: int | None = None  # Of each GPU; None if unknown, or if ranks differ.
    unavailable: tuple[str, ...] = ()  # Why a measurement is not used.

    def judge(
        self, kind: str, flop: float | None, moved: float | None, seconds: float
    ) -> tuple[str, float | None]:
        """What limits an operator, and its time at that limit as a share of the one it took.

        Empty and None if that is unknown: caches may be faster than memory, and damaged sizes too.
        """
        limits = {}
        if self.memory is not None and moved is not None:
            limits["memory"] = moved / self.memory
        peak = self.peaks.get(kind)
        if peak is not None and flop is not None:
            limits["computation"] = flop / peak
        if not limits or (flop is not None and "computation" not in limits):
            return "", None
        bound = max(limits, key=lambda one: limits[one])
        ratio = limits[bound] / seconds
        most = _MOST_RATIO if self.is_measured else 1
        return (bound, min(ratio, 1.0)) if ratio <= most else ("", None)


def limits_of(run: Run, sheet: Sheet, profile: FabricFile | None) -> Limits:
    """The limits of the GPU that all ranks have.

    A product in fp32 has one in the sheet only if it runs on tensor cores.
    """
    names = {rank.device.name for rank in run.ranks}
    sizes = {rank.device.num_multiprocessors for rank in run.ranks}
    name = names.pop() if len(names) == 1 else ""
    limits = Limits(multiprocessors=sizes.pop() if len(sizes) == 1 else None)
    unused: tuple[str, ...] = ()
    if profile is not None and (profile.rates or profile.memory_bytes_per_s):
        if profile.device == name:
            return replace(
                limits,
                peaks={rate.dtype: rate.flops for rate in profile.rates},
                memory=profile.memory_bytes_per_s,
                is_measured=True,
            )
        ran = name or "several kinds of GPUs"
        unused = (f"the measured speed is not used: it is that of {profile.device}, not of {ran}",)
    gpu = recognise_gpu(sheet, name) if name else None
    if gpu is None:
        return replace(limits, unavailable=unused)
    peaks = {"bf16": gpu.bf16_flops, "fp16": gpu.bf16_flops, "tf32": gpu.bf16_flops / 2}
    peaks |= {} if gpu.fp8_flops is None else {"fp8": gpu.fp8_flops}
    return replace(limits, peaks=peaks, memory=gpu.memory_bandwidth, unavailable=unused)


def rank_kernel_calls(
    tables: RankTables, context: RankContext, load_host: Callable[[], Table] | None
) -> KernelCalls | None:
    """The kernels of one rank; None on a CPU, or if its computation is not to be explained."""
    is_wanted = context.is_explained and not context.is_cpu
    return kernels_of(tables, context.windows, load_host) if is_wanted else None


def rank_computation(savings: Savings | None, windows: Intervals) -> RankComputation | None:
    """The computation of one rank by operator and module; None if it is not explained."""
    if savings is None:
        return None
    calls, rows = savings.groups.calls, operator_stats(savings.groups)
    return RankComputation(
        rows=(*rows[:MOST_ROWS], *_rest(rows[MOST_ROWS:])),
        has_operators=bool((calls.row >= 0).any()),
        savings=savings.stats,
        regions=savings.regions,
        modules=modules_of(calls),
        graph_ns=int(calls.counted_ns[calls.in_graph].sum()),
        compiled=compiled_code(calls.operators, calls.host, windows),
    )


def operator_stats(groups: Groups) -> list[OperatorStats]:
    """Operators with different inputs, longest first."""
    calls = groups.calls
    total = np.bincount(groups.group, weights=calls.counted_ns).astype(np.int64)
    return [
        OperatorStats(
            name=groups.names[one],
            inputs=groups.given[one],
            category=int(calls.category[at]),
            part=int(calls.part[at]),
            num_calls=int(groups.num_calls[one]),
            total_ns=int(total[one]),
            kernel=groups.kernels[one],
            blocks=int(calls.blocks[at]),
        )
        for one in np.argsort(-total, kind="stable").tolist()
        for at in (int(groups.longest[one]),)
        if total[one]
    ]


def _together(rows: Iterable[OperatorStats]) -> list[OperatorStats]:
    """Rows with the same operator, inputs, category and pass as one, longest first."""
    found: dict[tuple[str, str, int, int], OperatorStats] = {}
    for row in rows:
        key = (row.name, row.inputs, row.category, row.part)
        found[key] = added(found[key], row, "num_calls", "total_ns") if key in found else row
    return sorted(found.values(), key=lambda row: -row.total_ns)


def _rest(rows: Iterable[OperatorStats], **same: int) -> list[OperatorStats]:
    """Rows without their names, summed up by category and pass; ``same`` replaces these."""
    return _together(
        replace(row, name=REST, inputs="", kernel="", blocks=0, **same) for row in rows
    )


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
    rows = _together(row for rank in explained.values() for row in rank.rows)
    limits = limits_of(run, sheet, fabric)
    products = [row for row in rows if _category(row) in PRODUCTS]
    total_ns, product_ns = _time_of(rows), _time_of(products)
    known_ns = _time_of(row for row in products if _flop(row) is not None)
    recorded_ns = _time_of(row for row in products if row.inputs)
    precision = _precision(rows)
    computed_once = (row for row in products if row.part != Pass.RECOMPUTATION)
    wide = (row for row in products if _category(row) == "gemm" and _multiplied(row) in _16_BITS)
    compiled = [rank.compiled for rank in explained.values() if rank.compiled is not None]
    return ComputationResult(
        ranks=tuple(explained),
        num_steps=analyses.num_windows,
        total_ns=total_ns,
        categories=_category_rows(rows),
        operators=operator_rows(rows, limits),
        modules=_module_rows(explained.values(), total_ns),
        graph_ratio=sum(rank.graph_ns for rank in explained.values()) / max(total_ns, 1),
        small_ratio=_small_ratio(rows, limits),
        savings=_savings(explained.values()),
        regions=max((rank.regions for rank in explained.values()), key=_time_of),
        flop=_known_flop(rows),
        recomputed_flop=_known_flop(row for row in rows if row.part == Pass.RECOMPUTATION),
        precision=precision,
        slower_types_ns=_saved_ns(computed_once, limits, precision),
        fp8_bound_ns=_saved_ns(wide, limits, "fp8") if "fp8" in limits.peaks else None,
        roofs=tuple(Roof(dtype=kind, flops=flops) for kind, flops in limits.peaks.items()),
        memory_bytes_per_s=limits.memory,
        is_measured=limits.is_measured,
        counted_ratio=known_ns / product_ns if product_ns else None,
        recorded_ratio=recorded_ns / product_ns if product_ns else None,
        compiled=reduce(CompiledCode.and_of, compiled) if compiled else None,
        unavailable=(*_unavailable(explained.values(), rows), *limits.unavailable),
    )


def _time_of(rows: Iterable[OperatorStats | Region]) -> int:
    return sum(row.total_ns for row in rows)


def _category(row: OperatorStats) -> str:
    return tuple(categories())[row.category]


def _flop(row: OperatorStats) -> float | None:
    """FLOP of all calls; None if unknown."""
    flop = work_of(row.name, row.inputs).flop
    return None if flop is None else float(flop) * row.num_calls


def _known_flop(rows: Iterable[OperatorStats]) -> float | None:
    """Sum of the known FLOP; None if none are known."""
    known = [flop for flop in map(_flop, rows) if flop is not None]
    return sum(known) if known else None


def _precision(rows: Iterable[OperatorStats]) -> str:
    """The type that most FLOP multiply; empty if unknown."""
    sums: dict[str, float] = {}
    for row in rows:
        if (kind := _multiplied(row)) and (flop := _flop(row)):
            sums[kind] = sums.get(kind, 0) + flop
    return max(sums, key=lambda kind: sums[kind], default="")


def _saved_ns(products: Iterable[OperatorStats], limits: Limits, kind: str) -> int:
    """What products in slower types would save in another one."""
    return round(sum(row.total_ns * _saved_ratio(row, limits, kind) for row in products))


_16_BITS = ("bf16", "fp16")


def _saved_ratio(row: OperatorStats, limits: Limits, kind: str) -> float:
    """Share of its time that a product would save in another type."""
    own = _multiplied(row)
    if own == "fp32" != kind:
        return 1 - 1 / FP32_SPEED_UP
    peak, other = limits.peaks.get(own), limits.peaks.get(kind)
    return 0.0 if peak is None or other is None else max(0.0, 1 - peak / other)


def _savings(explained: Iterable[RankComputation]) -> tuple[Saving, ...]:
    """The savings of all ranks together, largest first."""
    rows: dict[str, Saving] = {}
    for one in (saving for rank in explained for saving in rank.savings):
        before = rows.get(one.what)
        sums = ("spent_ns", "saved_ns", "idle_ns")
        rows[one.what] = one if before is None else added(one, before, *sums)
    return tuple(sorted(rows.values(), key=lambda row: -row.saved_ns))


def _module_rows(explained: Iterable[RankComputation], total_ns: int) -> tuple[ModuleRow, ...]:
    """The tree of all ranks, and what is outside of it; empty if no modules were recorded."""
    own: dict[tuple[str, ...], ModuleStats] = {}
    for row in (row for rank in explained for row in rank.modules):
        if (before := own.get(row.path)) is not None:
            most = max(before.num_modules, row.num_modules)
            row = replace(added(before, row, *_SUMS), num_modules=most)
        own[row.path] = row
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
    outside_ns = total_ns - sum(row.self_ns for row in own.values())
    outside = ModuleStats(
        path=(OUTSIDE_MODULES,), num_modules=0, num_calls=0, self_ns=outside_ns, backward_ns=0
    )
    listed = [(own[path], total[path], backward[path]) for path in longest_first]
    return tuple(
        made_from(
            stats,
            ModuleRow,
            name=stats.path[-1],
            depth=len(stats.path) - 1,
            total_ns=whole,
            backward_ns=of_backward,
        )
        for stats, whole, of_backward in (*listed, (outside, outside_ns, 0))
    )


_SUMS = ("num_calls", "self_ns", "backward_ns")


def _category_rows(stats: Sequence[OperatorStats]) -> tuple[CategoryRow, ...]:
    rows = [
        CategoryRow(
            name=name,
            title=category.title,
            total_ns=_time_of(own),
            counted_ns=_time_of(row for row in own if _flop(row) is not None),
            **{f"{one.label}_ns": _time_of(row for row in own if row.part == one) for one in Pass},
            flop=_known_flop(own),
        )
        for number, (name, category) in enumerate(categories().items())
        if (own := [row for row in stats if row.category == number])
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def operator_rows(stats: Iterable[OperatorStats], limits: Limits) -> tuple[OperatorRow, ...]:
    """Rows of a report, longest first, with what limits them."""
    together = _together(stats)
    rest = _rest(together[TABLE_LIMIT:], category=number_of("other"), part=Pass.OTHER)
    rows = (*together[:TABLE_LIMIT], *rest)
    return tuple(_operator_row(row, limits) for row in rows)


def _operator_row(row: OperatorStats, limits: Limits) -> OperatorRow:
    work, flop, seconds = work_of(row.name, row.inputs), _flop(row), row.total_ns / NS_PER_S
    moved = None if work.bytes is None else work.bytes * row.num_calls
    bound, ratio = limits.judge(_multiplied(row), flop, moved, seconds)
    return made_from(
        row,
        OperatorRow,
        inputs=" · ".join(tensors(row.inputs)),
        category=_category(row),
        part=Pass(row.part).label,
        flop=work.flop,
        bytes=work.bytes,
        flops=None if flop is None else flop / seconds,
        bytes_per_s=None if moved is None else moved / seconds,
        bound=bound,
        peak_ratio=ratio,
        filled_ratio=_filled_ratio(row, limits),
    )


def _filled_ratio(row: OperatorStats, limits: Limits) -> float | None:
    size = limits.multiprocessors
    return min(row.blocks / size, 1.0) if size and row.blocks > 0 else None


def _small_ratio(rows: Iterable[OperatorStats], limits: Limits) -> float | None:
    ratios = [(_filled_ratio(row, limits), row.total_ns) for row in rows]
    known = sum(ns for ratio, ns in ratios if ratio is not None)
    small = sum(ns for ratio, ns in ratios if ratio is not None and ratio < SMALL_KERNEL)
    return small / known if known else None


def _multiplied(row: OperatorStats) -> str:
    """The type that it multiplies, as limits name it; empty if unknown."""
    kind = parse_inputs(row.inputs).first_type
    if kind.startswith("c10::Float8") or _FP8.search(row.kernel):
        return "fp8"
    return "tf32" if kind == "float" and _TF32.search(row.kernel) else SHORT_TYPES.get(kind, kind)


def _unavailable(
    explained: Iterable[RankComputation], rows: Iterable[OperatorStats]
) -> tuple[str, ...]:
    if not any(rank.has_operators for rank in explained):
        return (NO_OPERATORS,)
    return () if any(row.inputs for row in rows) else (NO_SHAPES,)
