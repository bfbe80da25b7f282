"""Gradients of data parallelism: how often they are reduced, and beside how much of backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.gradients.result import GradientGroup
from distprof.sections.parts import window_word
from distprof.sections.table import Cell, TableColumn, TableView
from distprof.units import format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["gradients_table"]


def gradients_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """One row per axis along which DistributedDataParallel reduces gradients."""
    groups = report.gradients.groups
    if not groups:
        return None
    return TableView(
        title="Gradients",
        caption=f"of DDP; reduced: times per update; exposed: mean per {window_word(report)}",
        columns=(
            TableColumn(title="axis", left=True, stretch=True),
            TableColumn(title="gradients"),
            TableColumn(title="micro-batches"),
            TableColumn(title="reduced"),
            TableColumn(title="buckets"),
            TableColumn(title="exposed"),
            TableColumn(title="transfer", wide_only=True),
            TableColumn(title="backward"),
            TableColumn(title="first ready"),
        ),
        rows=tuple(_cells(group) for group in groups),
        notes=_notes(groups),
    )


def _cells(group: GradientGroup) -> tuple[Cell, ...]:
    times = group.times_reduced
    return (
        group.axis,
        " ".join((format_bytes(group.bytes), *group.dtypes)).strip(),
        f"{group.micro_batches:.3g}",
        "–" if times is None else f"{times:.3g} ×",
        str(group.num_buckets),
        format_duration(group.exposed_ns_per_step),
        format_duration(group.transfer_ns),
        format_duration(group.backward_ns),
        format_ratio(_first_ready(group)),
    )


def _first_ready(group: GradientGroup) -> float | None:
    """Share of backward that is done when the first bucket is ready."""
    if group.before_first_ns is None or not group.backward_ns:
        return None
    return group.before_first_ns / group.backward_ns


def _notes(groups: tuple[GradientGroup, ...]) -> tuple[str, ...]:
    if all(group.is_split for group in groups):
        return ()
    return ("exposed holds waiting for late ranks: not all members were recorded and matched",)
