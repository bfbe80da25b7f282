"""What NCCL's logs tell, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from distprof.escape import shorten
from distprof.sections.nccl.measure import BETWEEN, INSIDE
from distprof.sections.nccl.result import (
    NcclChoices,
    NcclGroup,
    NcclHost,
    NcclResult,
    NcclSetting,
    NcclTransport,
)
from distprof.sections.parts import is_of_nccl_alone
from distprof.sections.table import TableColumn, TableView, counted
from distprof.units import fold_ranks, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = [
    "choices_table",
    "communicators_table",
    "nccl_hosts_table",
    "nccl_settings_table",
    "nccl_verdict",
    "nccl_warnings_table",
    "transport_name",
    "transports_table",
]


def nccl_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    result = report.nccl
    if not is_of_nccl_alone(report):
        return None
    why = (_init(result), _warnings(result), _read(result))
    return _line(result), tuple(sentence for sentence in why if sentence)


def transport_name(way: NcclTransport) -> str:
    """For example ``NET/IB with GPUDirect RDMA``."""
    return f"{way.transport} with GPUDirect RDMA" if way.has_gdr else way.transport


def _line(result: NcclResult) -> str:
    parts = [_share(result, BETWEEN), _share(result, INSIDE)]
    told = "; ".join(part for part in parts if part)
    if not told:
        return "The log names no connection between ranks."
    return f"{told[:1].upper()}{told[1:]}."


def _share(result: NcclResult, where: str) -> str:
    """For example ``between nodes all connections use NET/IB with GPUDirect RDMA``."""
    ways = [way for way in result.transports if way.where == where]
    total = sum(way.num_lines for way in ways)
    if not total:
        return ""
    most = max(ways, key=lambda way: way.num_lines)
    ratio = most.num_lines / total
    share = "all" if len(ways) == 1 else f"{format_ratio(ratio)} of the"
    return f"{where} {share} connections use {transport_name(most)}{_doubt(most)}"


def _doubt(way: NcclTransport) -> str:
    without = way.where == BETWEEN and way.transport != "NET/Socket" and not way.has_gdr
    return ", without GPUDirect RDMA" if without else ""


def _init(result: NcclResult) -> str:
    slowest = max((group.init_ns or 0 for group in result.groups), default=0)
    number = sum(group.num_communicators for group in result.groups)
    if not number:
        return ""
    largest = result.groups[0].num_ranks
    several = "s" if number > 1 else ""
    text = f"{number:,} communicator{several}, the largest of {largest:,} ranks"
    return (
        f"{text}; the slowest took {format_duration(slowest)} to begin." if slowest else f"{text}."
    )


def _warnings(result: NcclResult) -> str:
    problems = [w for w in result.warnings if w.about == "problem"]
    if not problems:
        return ""
    number = sum(warning.num_lines for warning in problems)
    times = "once" if number == 1 else f"{number:,} times"
    return f"NCCL warns {times}: {problems[0].text.rstrip('.')}."


def _read(result: NcclResult) -> str:
    if not result.num_unknown:
        return ""
    return f"Of {result.num_texts:,} texts of NCCL, {result.num_unknown:,} are not known."


# What NCCL's logs tell, as tables ----------------------------------------------------------------

MAX_ROWS = 12

_T = TypeVar("_T")

_MAX_TEXT = 120

_MAX_UNKNOWN = 5


def transports_table(report: Report, *, show_all: bool) -> TableView | None:
    """How ranks are connected."""
    result = report.nccl
    if not result.num_files:
        return None
    notes = list(result.unavailable)
    if result.num_unknown or result.num_cut:
        notes.append(
            f"Of {result.num_texts:,} texts of NCCL, {result.num_unknown:,} are not known and "
            f"{result.num_cut:,} are cut off."
        )
    if show_all:
        notes += [
            f"Not known: {shorten(text, _MAX_TEXT)}" for text in result.unknown[:_MAX_UNKNOWN]
        ]
    rows = tuple(
        (way.where, transport_name(way), f"{way.num_pairs:,}", f"{way.num_lines:,}")
        for way in result.transports
    )
    return TableView(
        title="Connections",
        caption="by NCCL's log",
        columns=(
            TableColumn(title="where", left=True),
            TableColumn(title="transport", left=True),
            TableColumn(title="pairs of ranks"),
            TableColumn(title="lines"),
        ),
        rows=rows,
        notes=tuple(notes),
    )


def communicators_table(report: Report, *, show_all: bool) -> TableView | None:
    """Communicators by size."""
    groups = report.nccl.groups
    if not groups:
        return None
    return TableView(
        title="Communicators",
        caption="alike ones in one row",
        columns=(
            TableColumn(title="ranks"),
            TableColumn(title="number"),
            TableColumn(title="nodes"),
            TableColumn(title="channels"),
            TableColumn(title="slowest init"),
            TableColumn(title="ring leaves a node", wide_only=True),
            TableColumn(title="tree depth", wide_only=True),
        ),
        rows=tuple(_group_row(group) for group in _some(groups, show_all=show_all)),
    )


def _group_row(group: NcclGroup) -> tuple[str, ...]:
    return (
        f"{group.num_ranks:,}",
        f"{group.num_communicators:,}",
        _number(group.num_hosts),
        _number(group.num_channels),
        format_duration(group.init_ns),
        "–" if group.crossings is None else f"{group.crossings:.1f} times",
        _number(group.tree_depth),
    )


def nccl_hosts_table(report: Report, *, show_all: bool) -> TableView | None:
    """Network cards of hosts, and which of them are used."""
    hosts = [host for host in report.nccl.hosts if host.cards]
    if not hosts:
        return None
    return TableView(
        title="Network cards",
        caption="found by NCCL, and used by connections in the log",
        columns=(
            TableColumn(title="host", left=True),
            TableColumn(title="ranks", left=True),
            TableColumn(title="kind", left=True),
            TableColumn(title="used"),
            TableColumn(title="not used", left=True, wrap=True),
        ),
        rows=tuple(_host_row(host) for host in _some(hosts, show_all=show_all)),
        notes=_more(hosts, "host", show_all=show_all),
    )


def _host_row(host: NcclHost) -> tuple[str, ...]:
    idle = [card for card in host.cards if card not in host.used_cards]
    return (
        host.host,
        fold_ranks(host.ranks) or "–",
        ", ".join(host.links) or "Socket",
        f"{len(host.used_cards)} of {len(host.cards)}",
        ", ".join(idle) if host.used_cards else "–",
    )


def choices_table(report: Report, *, show_all: bool) -> TableView | None:
    """Algorithms and protocols."""
    choices = report.nccl.choices
    if not choices:
        return None
    return TableView(
        title="Operations",
        caption="lines of NCCL's log; a dash where it names no choice",
        columns=(
            TableColumn(title="operation", left=True),
            TableColumn(title="algorithm", left=True),
            TableColumn(title="protocol", left=True),
            TableColumn(title="sizes", left=True),
            TableColumn(title="lines"),
        ),
        rows=tuple(_choice_row(choice) for choice in _some(choices, show_all=show_all)),
        notes=_more(choices, "row", show_all=show_all),
    )


def _choice_row(choice: NcclChoices) -> tuple[str, ...]:
    sizes = "–"
    if choice.min_bytes is not None:
        least, most = format_bytes(choice.min_bytes), format_bytes(choice.max_bytes)
        sizes = least if least == most else f"{least} to {most}"
    words = (choice.operation, choice.algorithm, choice.protocol)
    return (*(word or "–" for word in words), sizes, f"{choice.num_calls:,}")


def nccl_settings_table(report: Report, *, show_all: bool) -> TableView | None:
    """Versions and environment variables."""
    settings = (*report.nccl.versions, *report.nccl.settings)
    if not settings:
        return None
    return TableView(
        title="NCCL settings",
        caption="as NCCL read them",
        columns=(
            TableColumn(title="name", left=True),
            TableColumn(title="value", left=True, wrap=True),
            TableColumn(title="processes"),
            TableColumn(title="ranks", left=True, wide_only=True),
        ),
        rows=tuple(_setting_row(setting) for setting in _some(settings, show_all=show_all)),
        notes=_more(settings, "setting", show_all=show_all),
    )


def _setting_row(setting: NcclSetting) -> tuple[str, ...]:
    return (
        setting.name,
        shorten(setting.value, _MAX_TEXT),
        f"{setting.num_processes:,}" if setting.num_processes else "–",
        fold_ranks(setting.ranks) or "–",
    )


def nccl_warnings_table(report: Report, *, show_all: bool) -> TableView | None:
    """Warnings; those of processes that end are harmless and shown on demand."""
    all_warnings = report.nccl.warnings
    shown = [w for w in all_warnings if show_all or w.about != "teardown"]
    if not all_warnings:
        return None
    hidden = sum(w.num_lines for w in all_warnings) - sum(w.num_lines for w in shown)
    notes = [] if not hidden else [f"{counted(hidden, 'warning')} of processes that end: harmless."]
    return TableView(
        title="NCCL warnings",
        columns=(
            TableColumn(title="warning", left=True, wrap=True),
            TableColumn(title="kind", left=True),
            TableColumn(title="lines"),
            TableColumn(title="ranks", left=True, wide_only=True),
        ),
        rows=tuple(
            (w.text, w.about, f"{w.num_lines:,}", fold_ranks(w.ranks) or "–")
            for w in _some(shown, show_all=show_all)
        ),
        notes=(*notes, *_more(shown, "kind", show_all=show_all)),
    )


def _some(rows: Sequence[_T], *, show_all: bool) -> Iterable[_T]:
    return rows if show_all else rows[:MAX_ROWS]


def _more(rows: Sequence[object], noun: str, *, show_all: bool) -> tuple[str, ...]:
    left = 0 if show_all else len(rows) - MAX_ROWS
    return (f"{counted(left, f'more {noun}')} with --all.",) if left > 0 else ()


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
