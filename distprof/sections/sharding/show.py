"""Traffic of sharded parameters and tensor parallelism per step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distprof.sections.parts import window_word
from distprof.sections.sharding import ShardedAxis, TensorTraffic
from distprof.sections.table import Cell, Column, TableView, counted
from distprof.units import format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report


def sharding_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Gathers and scatters of parameters by axis, then the tensor axis."""
    sharding = report.sharding
    rows = [row for axis in sharding.axes for row in _axis_rows(axis)]
    rows += [] if sharding.tensor is None else list(_tensor_rows(sharding.tensor))
    if not rows:
        return None
    return TableView(
        title="Sharding",
        caption=f"mean per rank and {window_word(report)}; ahead: share that begins during"
        " computation",
        columns=(
            Column("axis", left=True, stretch=True),
            Column("kind", left=True),
            Column("count"),
            Column("passes"),
            Column("bytes"),
            Column("exposed"),
            Column("wait"),
            Column("ahead"),
        ),
        rows=tuple(rows),
        notes=tuple(
            f"{axis.axis}: {counted(axis.num_units, 'unit')} of parameters"
            for axis in sharding.axes
            if axis.num_units is not None
        ),
    )


def _axis_rows(axis: ShardedAxis) -> Iterator[tuple[Cell, ...]]:
    name = axis.axis if axis.group_size is None else f"{axis.axis} ({axis.group_size})"
    yield (
        name,
        "all_gather",
        _count(axis.gathers_per_step),
        "–" if axis.gather_passes is None else _count(axis.gather_passes),
        format_bytes(axis.gather_bytes_per_step),
        format_duration(axis.gather_exposed_ns_per_step),
        format_duration(axis.gather_wait_ns_per_step),
        format_ratio(axis.ahead_ratio),
    )
    yield (
        name,
        "reduce_scatter",
        _count(axis.scatters_per_step),
        "–" if axis.scatter_passes is None else str(axis.scatter_passes),
        format_bytes(axis.scatter_bytes_per_step),
        format_duration(axis.scatter_exposed_ns_per_step),
        format_duration(axis.scatter_wait_ns_per_step),
        "",
    )


def _tensor_rows(tensor: TensorTraffic) -> Iterator[tuple[Cell, ...]]:
    name = "tp" if tensor.group_size is None else f"tp ({tensor.group_size})"
    pairs = tensor.all_gathers_per_step + tensor.reduce_scatters_per_step
    if pairs:
        yield (
            name,
            "gather, scatter",
            _count(pairs),
            "",
            format_bytes(tensor.pair_bytes_per_step),
            format_duration(tensor.pair_exposed_ns_per_step),
            format_duration(tensor.pair_wait_ns_per_step),
            "",
        )
    if tensor.all_reduces_per_step:
        yield (
            name,
            "all_reduce",
            _count(tensor.all_reduces_per_step),
            "",
            format_bytes(tensor.all_reduce_bytes_per_step),
            format_duration(tensor.all_reduce_exposed_ns_per_step),
            format_duration(tensor.all_reduce_wait_ns_per_step),
            "",
        )


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
