"""What the simulated step would take without each cause, and what its end waits for."""

from __future__ import annotations

from distprof.analyzers.whatif.analysis import Scenario, WhatIfResult
from distprof.report.model import Report
from distprof.report.parts import window_word
from distprof.report.views.table import Bar, Cell, TableColumn, TableView, counted
from distprof.units import format_duration, format_ratio

__all__ = ["path_table", "whatif_table"]

MAX_SHOWN = 10
SMALL_RATIO = 0.001

_PARTLY = ("axis ", "small collectives", "collectives ")
"""Scenarios that are part of others."""

_PART_OF_KIND = {
    "compute": "computation",
    "transfer": "exposed_transfer",
    "wait": "exposed_wait",
}


def whatif_table(report: Report, *, show_all: bool) -> TableView | None:
    """Scenarios by what they recover."""
    result = report.whatif
    if result.source != "traces" or not result.without or not result.replayed_ns:
        return None
    replayed = result.replayed_ns
    worth = result.without if show_all else _worth_showing(result.without, replayed)
    shown = worth if show_all else worth[:MAX_SHOWN]
    if not shown:
        return None
    return TableView(
        title="What if",
        caption=f"{window_word(report)} simulated without each cause; gains do not add up",
        columns=(
            TableColumn(title="without", left=True),
            TableColumn(title=window_word(report)),
            TableColumn(title="recovers"),
            TableColumn(title="share"),
            TableColumn(title="that is", left=True, wrap=True, wide_only=True),
        ),
        rows=tuple(
            (
                scenario.what,
                format_duration(scenario.step_ns),
                format_duration(scenario.recoverable_ns),
                format_ratio(scenario.recoverable_ns / replayed),
                scenario.title,
            )
            for scenario in shown
        ),
        notes=_notes(result, len(worth) - len(shown)),
    )


def _worth_showing(without: tuple[Scenario, ...], replayed_ns: int) -> tuple[Scenario, ...]:
    """Those that recover anything; of several that recover the same, the one that says most."""
    by_gain: dict[int, Scenario] = {}
    for scenario in without:
        known = by_gain.setdefault(scenario.recoverable_ns, scenario)
        if known.what.startswith(_PARTLY) and not scenario.what.startswith(_PARTLY):
            by_gain[scenario.recoverable_ns] = scenario
    return tuple(s for gain, s in by_gain.items() if gain >= SMALL_RATIO * replayed_ns)


def _notes(result: WhatIfResult, num_left_out: int) -> tuple[str, ...]:
    notes = [f"and {num_left_out} more: shown by --all"] if num_left_out > 0 else []
    if result.model_error_ratio is not None and result.num_steps is not None:
        notes.append(
            f"nothing changed, the simulation is {format_ratio(abs(result.model_error_ratio))} off "
            f"the measured mean of {counted(result.num_steps, 'step')}"
        )
    if result.slowdown is not None:
        text = f"{result.slowdown:.3f} times the step of ranks that are all alike"
        slowest = result.workers[:1]
        if result.m_w is not None and slowest:
            text += (
                f"; {format_ratio(result.m_w)} of the difference is explained by the slowest "
                f"ranks, first rank {slowest[0].rank}"
            )
        if result.m_s is not None:
            text += f", {format_ratio(result.m_s)} by the last stage"
        notes.append(text)
    return tuple(notes)


def path_table(report: Report, *, show_all: bool) -> TableView | None:
    """The critical path by rank and class."""
    result = report.whatif
    if result.source != "traces" or not result.path:
        return None
    shown = result.path if show_all else result.path[:MAX_SHOWN]
    rows: list[tuple[Cell, ...]] = [
        (
            "several" if share.rank is None else str(share.rank),
            share.kind,
            share.name,
            format_duration(share.ns_per_step),
            format_ratio(share.share_ratio),
            Bar(ratio=min(max(share.share_ratio, 0.0), 1.0), key=_key(share.kind)),
        )
        for share in shown
    ]
    left_out = len(result.path) - len(shown)
    return TableView(
        title="Critical path",
        caption=f"what the end of the {window_word(report)} waits for, mean",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="what", left=True),
            TableColumn(title="of", left=True, stretch=True),
            TableColumn(title="time"),
            TableColumn(title="share"),
            TableColumn(title="", left=True),
        ),
        rows=tuple(rows),
        notes=(f"and {left_out} smaller ones: shown by --all",) if left_out else (),
    )


def _key(kind: str) -> str:
    """Part of a step whose colour a kind has."""
    return _PART_OF_KIND.get(kind, "idle_host")
