"""What computation consists of, and how close each operator comes to the limit of the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from distprof.escape import shorten
from distprof.sections.computation import (
    LEAST_COUNTED,
    PRODUCTS,
    SAVING_TITLES,
    CategoryRow,
    ComputationResult,
    ModuleRow,
    OperatorRow,
)
from distprof.sections.parts import each_window, parts_of
from distprof.sections.table import Bar, Column, TableView, counted, first_rows, rows_table
from distprof.units import (
    NS_PER_S,
    fold_ranks,
    format_bandwidth,
    format_duration,
    format_flop,
    format_ratio,
)

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_SHOWN = 12
"""Operators, and modules, of a table that is cut."""

_LONGEST_NAME = 32

_SMALL = 0.005

_WORTH_SHOWING = 0.001

_PASSES = ("forward", "backward", "recomputation", "optimizer", "other")


def categories_table(report: Report, *, show_all: bool) -> TableView | None:
    """Computation by category and pass, per step and rank."""
    result = report.computation
    if not result.categories:
        return None
    samples = result.num_samples
    small = 0 if show_all else _SMALL * result.total_ns
    rows = [row for row in result.categories if row.total_ns >= small]

    def per_step(field: str) -> Column:
        shown = any(getattr(row, f"{field}_ns") for row in rows)
        return Column(
            field,
            lambda row: getattr(row, f"{field}_ns") / samples or None,
            form="ns",
            wide_only=True,
            when=shown,
        )

    return rows_table(
        "Computation",
        (
            Column("category", "title", left=True),
            Column("share", lambda row: row.total_ns / result.total_ns, form="ratio"),
            Column("per step", lambda row: row.total_ns / samples, form="ns"),
            *map(per_step, _PASSES),
            Column("reaches", _flops_text, when=result.flop is not None),
        ),
        rows,
        caption=_who(report),
        notes=_category_notes(result, len(result.categories) - len(rows)),
    )


def most_computation(report: Report) -> str:
    """The categories that take most of the computation; empty if operators are unknown."""
    result = report.computation
    named = [row for row in result.categories[:2] if row.name != "other"]
    parts = [f"{format_ratio(row.total_ns / result.total_ns)} is {row.title}" for row in named]
    return f"Of it, {', '.join(parts)}." if parts else ""


def _category_notes(result: ComputationResult, num_left_out: int) -> Iterator[str]:
    yield from result.unavailable
    if result.counted_ratio is not None and result.counted_ratio < LEAST_COUNTED and result.flop:
        yield _unknown_flop(result, result.counted_ratio)
    if result.graph_ratio >= _SMALL:
        yield (
            f"CUDA graphs launched {format_ratio(result.graph_ratio)} of this time: the trace holds"
            " no operators of these kernels, so only their names say what they compute"
        )
    if (code := result.compiled) is not None:
        calls = counted(result.per_step(code.num_regions), "compiled region")
        functions = f" of {counted(code.num_functions, 'function')}" if code.num_functions else ""
        breaks = result.per_step(code.num_breaks)
        compiles = counted(code.num_compiles, "time")
        yield (
            f"torch.compile: {calls}{functions} per step and rank"
            + (f", at least {breaks:,} of which end in a graph break" if breaks else "")
            + (f"; it compiled {compiles} while recorded" if code.num_compiles else "")
        )
    if num_left_out:
        yield f"and {counted(num_left_out, 'category')} under 0.5 %"


def _unknown_flop(result: ComputationResult, known: float) -> str:
    """How much of the products has no FLOP, and most of it."""
    left = [row for row in result.operators if row.category in PRODUCTS and row.flop is None]
    reason = "whose inputs do not show them" if left and left[0].inputs else "without inputs"
    most = f"; most of the rest is {_short_name(left[0])}, {reason}" if left else ""
    return (
        f"FLOP are known of {format_ratio(known)} of the time in matrix products, attention and "
        f"convolutions; sizes were recorded of {format_ratio(result.recorded_ratio or 0)}{most}"
    )


def _who(report: Report) -> str:
    """Which ranks were explained, if not all."""
    ranks = report.computation.ranks
    if len(ranks) == len(report.run.ranks):
        return "GPU time by kind of operator and pass, mean per step and rank"
    return f"mean per step of ranks {fold_ranks(ranks)}, by kind of operator and pass"


def _flops_text(row: CategoryRow) -> str:
    if not row.flop or not row.counted_ns:
        return "–"
    return f"{format_flop(row.flop / row.counted_ns * NS_PER_S)}/s"


def from_peak(report: Report) -> list[tuple[str, float]]:
    """Parts of the mean step that add up to it, ns, from its FLOP at the peak; empty if unknown."""
    result, parts = report.computation, parts_of(report)
    peak = report.efficiency.peak_flops
    if not (parts and peak and result.flop and (result.counted_ratio or 0) >= LEAST_COUNTED):
        return []
    computed = next(part.ns for part in parts if part.key == "computation")
    scale = computed / result.total_ns  # to the mean of all ranks
    repeated = scale * sum(row.recomputation_ns for row in result.categories)
    products = scale * sum(
        row.total_ns - row.recomputation_ns for row in result.categories if row.name in PRODUCTS
    )
    useful = (result.flop - (result.recomputed_flop or 0)) / peak * NS_PER_S * scale
    useful = min(useful, products)
    slower = min(scale * result.slower_types_ns, products - useful)
    return [
        ("products at the peak", useful),
        ("products below the peak", products - useful - slower),
        ("products in slower types", slower),
        ("recomputation", repeated),
        ("kernels bound by memory", computed - products - repeated),
        *((part.label, part.ns) for part in parts if part.key != "computation"),
    ]


def largest_loss(report: Report) -> str:
    """What keeps the step from the peak, as a sentence; empty if the peak is unknown."""
    rows = from_peak(report)
    if not rows:
        return ""
    label, ns = max(rows[1:], key=itemgetter(1))
    share = ns / sum(ns for _, ns in rows)
    name = f"idle time ({cause})" if (cause := label.removeprefix("idle: ")) != label else label
    return f" Most is lost to {name}: {format_ratio(share)} of {each_window(report)}."


def products_sentence(report: Report) -> str:
    """What products reach, and most of the computation, if the MFU is unknown."""
    result = report.computation
    counted_ns = sum(row.counted_ns for row in result.categories)
    if not result.flop or not counted_ns or report.efficiency.mfu_ratio is not None:
        return ""
    reached = result.flop / counted_ns * NS_PER_S
    return (
        f"Products reach {format_flop(reached)}/s; the largest part of the computation is "
        f"{result.categories[0].title}.{largest_saving(report)}"
    )


_LEAST_SAVED = 0.02


def largest_saving(report: Report) -> str:
    """The change of computation that recovers most of the step; empty if it is little."""
    step_ns = report.whatif.replayed_ns
    known = [one for one in report.whatif.without if one.what in SAVING_TITLES]
    best = max(known, key=lambda one: one.recoverable_ns, default=None)
    share = best.recoverable_ns / step_ns if best is not None and step_ns else 0.0
    if best is None or share < _LEAST_SAVED:
        return ""
    saved = f"{format_duration(best.recoverable_ns)} ({format_ratio(share)})"
    return f" If {best.title}, the step would take {saved} less."


def peak_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The mean step from the FLOP that it needs at the peak of the GPU to what it takes."""
    result, rows = report.computation, from_peak(report)
    if not rows:
        return None
    span = sum(ns for _, ns in rows)
    fp8 = format_duration(result.per_step(result.fp8_bound_ns or 0))
    return rows_table(
        "From the peak to the step",
        (
            Column("part", itemgetter(0), left=True),
            Column("time", itemgetter(1), form="ns"),
            Column("share", lambda row: row[1] / span, form="ratio"),
            Column("", lambda row: Bar(ratio=row[1] / span, key="computation"), left=True),
        ),
        [row for row in rows if row[1] >= _WORTH_SHOWING * span],
        caption="mean step; the first row is what "
        f"{format_flop(report.efficiency.peak_flops or 0)}/s would take",
        notes=(
            f"fp8 could save at most {fp8} of the products: a bound, casts and scales cost time",
        )
        if result.fp8_bound_ns
        else (),
    )


def operators_table(report: Report, *, show_all: bool) -> TableView | None:
    """Operators with the same inputs, and how close they come to the limit of the GPU."""
    result = report.computation
    shown = first_rows(
        result.operators, MAX_SHOWN, show_all=show_all, noun="operator", note="and {}"
    )
    if not any(row.inputs for row in shown.rows):
        return None  # the table of kernels says as much
    samples = result.num_samples
    small = f"{format_ratio(result.small_ratio or 0)} of the time is in kernels with thread blocks"
    return rows_table(
        "Operators by shape",
        (
            Column("operator", _short_name, left=True),
            Column("pass", "part", left=True, wide_only=True),
            Column("calls", lambda row: row.num_calls / samples, form="figure"),
            Column("per step", lambda row: row.total_ns / samples, form="ns"),
            Column("reaches", reached_text),
            Column("of limit", "peak_ratio", form="ratio"),
            Column("fills GPU", "filled_ratio", form="ratio", wide_only=True),
            Column("inputs", "inputs", left=True, stretch=True),
        ),
        shown,
        caption="mean per step and rank; the limit is that of computation or memory, as "
        + ("measured" if result.is_measured else "the hardware sheet has it"),
        notes=[f"{small} for less than half of the GPU's multiprocessors"]
        * ((result.small_ratio or 0) >= _SMALL),
    )


def modules_table(report: Report, *, show_all: bool) -> TableView | None:
    """Modules as a tree, with the time of their kernels."""
    result = report.computation
    if len(result.modules) <= 1:
        return None
    samples = result.num_samples
    longest = sorted(result.modules, key=lambda row: -row.total_ns)[:MAX_SHOWN]
    least = 0 if show_all else longest[-1].total_ns
    rows = [row for row in result.modules if row.total_ns >= max(least, 1)]
    left_out = len(result.modules) - len(rows)
    return rows_table(
        "Computation by module",
        (
            Column("module", _module_text, left=True),
            Column("share", lambda row: row.total_ns / result.total_ns, form="ratio"),
            Column("per step", lambda row: row.total_ns / samples, form="ns"),
            Column("itself", lambda row: row.self_ns / samples, form="ns"),
            Column("backward", lambda row: row.backward_ns / samples, form="ns", wide_only=True),
            Column("calls", lambda row: row.num_calls / samples or None, form="figure"),
            Column(
                "per call",
                lambda row: row.total_ns / row.num_calls if row.num_calls else None,
                form="ns",
            ),
        ),
        rows,
        caption="mean per step and rank, backward pass included; a module contains those below it",
        notes=(f"and {counted(left_out, 'more module')}",) if left_out else (),
    )


def _module_text(row: ModuleRow) -> str:
    count = f" × {row.num_modules}" if row.num_modules > 1 else ""
    return f"{'· ' * row.depth}{row.name}{count}"


def _short_name(row: OperatorRow) -> str:
    name = row.name.removeprefix("aten::").replace("_scaled_dot_product_", "sdpa: ")
    return shorten(name, _LONGEST_NAME)


def reached_text(row: OperatorRow) -> str:
    """FLOP per second, or bytes per second where they are the limit or FLOP are unknown."""
    if row.flops is not None and row.bound != "memory":
        return f"{format_flop(row.flops)}/s"
    return format_bandwidth(row.bytes_per_s)
