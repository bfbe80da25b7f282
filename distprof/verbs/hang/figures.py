"""Figures of a hang: where each rank is in each kind of group, and the progress of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    Segment,
    bar,
    captioned,
    legend,
    row,
    rows,
)
from distprof.documents.html.heat_map import Grid, cell_map, grid_data, two_digits
from distprof.escape import short_ranks
from distprof.sections.ending.words import words
from distprof.sections.table import counted
from distprof.verbs.hang import GroupProgress, HangReport, HangState

_KINDS = ("g0", "g1", "g2", "g3", "g4")
_LAUNCHED, _WAITS, _BEHIND, _SILENT, _BLAMED = range(5)
_EMPTY = "not a member, or not blamed"
_UNKNOWN = "zz"
_MAX_ROWS = 2_048
"""With more ranks than this, several share a row, which shows the worst of their states."""
_MAX_COLUMNS = 48
_MOST_GROUPS = 32
_MAX_NAME = 60


class _Column(msgspec.Struct):
    """Groups that share no rank and fit in one column, such as those of one mesh axis."""

    name: str
    groups: list[GroupProgress]
    ranks: set[int]


def figures(report: HangReport) -> Iterator[Part]:
    """Ranks and groups, and the progress of the groups, of a hang."""
    if report.state is HangState.NO_HANG:
        return
    progress = progress_figure(report.groups)
    yield Part(anchor="places", title="Where each rank is", content=places_figure(report))
    yield Part(anchor="progress", title="Progress of the groups", content=progress)


def places_figure(report: HangReport) -> Markup:
    """Map of ranks by group: which launched, wait, are behind, left no dump or are blamed."""
    columns = list(_columns(report.groups))[:_MAX_COLUMNS]
    hosts = {position.rank: position.host for position in report.ranks}
    ranks = sorted({rank for each in columns for rank in each.ranks}, key=_by_host(hosts))
    if not ranks:
        return EMPTY
    states = np.stack([_states(report, each, ranks) for each in columns], axis=1)
    blamed = np.where(np.isin(ranks, report.culprits), _BLAMED, -1)[:, None]
    states = np.hstack([blamed, states])
    per_row = -(-len(ranks) // _MAX_ROWS)
    states = np.maximum.reduceat(states, np.arange(0, len(ranks), per_row), axis=0)
    grid = _grid(ranks, hosts, ("cause", *(each.name for each in columns)), per_row)
    causes = counted(max(len(report.roots), 1), "independent cause")
    named = f"Blamed: {short_ranks(report.culprits, 60)} ({causes})."
    named = named if report.culprits else "No rank is blamed."
    states_said = words().kinds["places"]
    return captioned(
        words().says("ranks by groups", named=named),
        cell_map(states, _KINDS, grid, f"Ranks by process groups. {named}"),
        legend([(f"k-{kind}", word) for kind, word in zip(_KINDS, states_said, strict=True)]),
        class_="heat",
        data_values="".join(
            _UNKNOWN if value < 0 else two_digits(value) for value in states.ravel().tolist()
        ),
        data_words=msgspec.json.encode(states_said).decode(),
        data_unit=_EMPTY,
        **grid_data(grid),
    )


def _columns(groups: Sequence[GroupProgress]) -> Iterator[_Column]:
    """Columns of groups with the same description; groups that share a rank get separate ones."""
    by_name: dict[str, list[_Column]] = {}
    for group in groups:
        name = group.description or group.group or "(unnamed)"
        same = by_name.setdefault(name, [])
        free = next((each for each in same if each.ranks.isdisjoint(group.ranks)), None)
        if free is None:
            free = _Column(name=name, groups=[], ranks=set())
            same.append(free)
        free.groups.append(group)
        free.ranks |= set(group.ranks)
    for same in by_name.values():
        yield from same


def _by_host(hosts: dict[int, str]) -> Callable[[int], tuple[int, int]]:
    """Sort key that keeps ranks of one host together, with hosts in order of their first rank."""
    first: dict[str, int] = {}
    for rank in sorted(hosts):
        first.setdefault(hosts[rank], rank)
    return lambda rank: (first.get(hosts.get(rank, ""), -1) if hosts.get(rank) else -1, rank)


def _states(report: HangReport, column: _Column, ranks: Sequence[int]) -> np.ndarray:
    """The state of each rank in the groups of a column, or -1 if it is in none."""
    at = dict.fromkeys(column.ranks, _LAUNCHED)
    waiting = {p.rank for p in report.ranks if p.waits_for and p.last_group == column.name}
    at |= dict.fromkeys(waiting & column.ranks, _WAITS)
    at |= {rank: _BEHIND for group in column.groups for rank in group.behind}
    at |= {rank: _SILENT for group in column.groups for rank in group.unknown}
    return np.array([at.get(rank, -1) for rank in ranks])


def _grid(
    ranks: Sequence[int], hosts: dict[int, str], columns: tuple[str, ...], per_row: int
) -> Grid:
    names = [hosts.get(rank, "") for rank in ranks]
    begins = [i for i, host in enumerate(names) if i == 0 or host != names[i - 1]]
    several = len(set(names)) > 1
    parts = [ranks[i : i + per_row] for i in range(0, len(ranks), per_row)]
    return Grid(
        rows=tuple(short_ranks(part) if len(part) > 1 else str(part[0]) for part in parts),
        columns=tuple(name[:_MAX_NAME] for name in columns),
        groups=tuple((i // per_row, names[i] or "unknown host") for i in begins) if several else (),
        row_word="rank",
        column_word="group",
        is_turned=True,
        group_word="host",
    )


def progress_figure(groups: Sequence[GroupProgress]) -> Markup:
    """Bars that show how many collectives the last member of each group is behind the first."""
    apart = [
        (group, low, high)
        for group in groups
        if (low := group.lowest_seq) is not None and (high := group.highest_seq) is not None
    ]
    apart.sort(key=lambda each: each[1] - each[2])
    most = max((high - low for _, low, high in apart), default=0)
    shown = [each for each in apart if each[1] < each[2] or each[0].waits_on][:_MOST_GROUPS]
    if not shown:
        return EMPTY
    lines = [_progress_row(group, low, high, most) for group, low, high in shown]
    left_out = len(apart) - len(shown)
    caption = words().said["progress"]
    if left_out:
        caption += f" {counted(left_out, 'other group')} not drawn."
    return captioned(caption, rows(lines))


def _progress_row(group: GroupProgress, low: int, high: int, most: int) -> Markup:
    name = f"{group.description or group.group or '(unnamed)'} ({short_ranks(group.ranks, 24)})"
    value = f"{low:,} to {high:,}" if low < high else f"all at {high:,}"
    behind = f", behind: {short_ranks(group.behind, 40)}" if group.behind else ""
    ratio = (high - low) / most if most else 0.0
    piece = Segment(kind="worse", ratio=ratio, title=f"{value}{behind}")
    drawn = bar((piece,), label=f"{name}: {value}{behind}", start=1 - ratio)
    return row(name[:_MAX_NAME], drawn, value)


FIGURES = {HangReport: figures}
