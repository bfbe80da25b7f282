"""Exports runs to other programs: Perfetto, OpenTelemetry and Prometheus.

Here is what all ranks of a merged timeline share: its clock, and the last rank per collective.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.join.waits import domain_of_ranks, member_column, member_rows, member_to_common
from distprof.run.run import ClockAlignment, Run
from distprof.schema import ABSENT, Int64Array
from distprof.units import format_duration
from distprof.verbs.sources import cannot_listen


class CommonClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of the file: the common clock of the ranks, shifted if it starts below 0."""

    alignment: ClockAlignment  # Alignment of the clocks of the ranks.
    shift_ns: int  # Shift added to all times, because times in the file are unsigned.
    first_ns: int  # Start of the first recording.
    last_ns: int  # End of the last recording.

    @staticmethod
    def of(run: Run) -> CommonClock:
        """The clock of a run with at least one rank."""
        captures = {r.rank: np.array((r.capture_start_ns, r.capture_end_ns)) for r in run.ranks}
        ends = np.stack([run.clock.to_common(rank, own) for rank, own in captures.items()])
        first, last = int(ends.min()), int(ends.max())
        shift = max(0, -first)
        return CommonClock(
            alignment=run.clock, shift_ns=shift, first_ns=first + shift, last_ns=last + shift
        )

    def times(self, rank: int, own_ns: Int64Array) -> Int64Array:
        """Convert times on a rank's own clock to the clock of the file."""
        return self.alignment.to_common(rank, own_ns) + self.shift_ns

    def spans(self, rank: int, own: Intervals) -> Intervals:
        """Convert intervals on a rank's own clock to the clock of the file."""
        return Intervals(self.times(rank, own.start), self.times(rank, own.end))

    def error_between(self, rank: int, others: Int64Array) -> Int64Array:
        """Uncertainty of times between this rank and each other rank, ns; ABSENT if unknown."""
        distinct, place = np.unique(others, return_inverse=True)
        found = [
            None if other == ABSENT else self.alignment.residual_between(rank, other)
            for other in distinct.tolist()
        ]
        errors = np.array([ABSENT if error is None else error for error in found], np.int64)
        return errors[place]


def clock_text(clock: ClockAlignment, ranks: Collection[int]) -> str:
    """Accuracy of the clock of these ranks, for example ``clock ±5.2 µs``."""
    domains = sorted({clock.domain_of(rank) for rank in ranks})
    if (clock.component != clock.component[0]).any():
        return "clock not comparable with the others'"
    if len(clock.domains) == 1 and clock.within_ns is not None and clock.within_ns[0] >= 0:
        return f"one clock ±{format_duration(int(clock.within_ns[0]))}"
    residuals = [int(clock.residual_ns[domain]) for domain in domains]
    if min(residuals) < 0:
        return "one clock, not checked" if len(clock.domains) == 1 else "clock not checked"
    return f"clock ±{format_duration(max(residuals))}"


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals of all members at the collectives of one rank; arrays per row of COLLECTIVES."""

    instance: Int64Array  # int64, number of the matched instance, from 1; 0 if it was not matched.
    last_rank: Int64Array  # int64, the member that started last; ABSENT if it was not matched.
    # int64, when the last of the other members started, on the clock of the run.
    others_ns: Int64Array


def arrivals_of(run: Run) -> Mapping[int, Arrivals]:
    """Arrivals at every matched collective, by rank."""
    lengths = [len(rank.collectives) for rank in run.ranks]
    instance = np.zeros(sum(lengths), np.int64)
    last_rank = np.full(sum(lengths), ABSENT, np.int64)
    others_ns = np.full(sum(lengths), ABSENT, np.int64)
    if run.matches.count:
        row = member_rows(run.matches, run.ranks)
        instance[row], last_rank[row], others_ns[row] = _of_members(run)
    cuts = np.cumsum(lengths)[:-1]
    parts = (np.split(column, cuts) for column in (instance, last_rank, others_ns))
    columns = zip(*parts, strict=True)
    return {
        rank.rank: Arrivals(instance=number, last_rank=last, others_ns=others)
        for rank, (number, last, others) in zip(run.ranks, columns, strict=True)
    }


def _of_members(run: Run) -> tuple[Int64Array, Int64Array, Int64Array]:
    """For each member: instance number, its last rank, and start of the last of the others."""
    matches = run.matches
    domain = domain_of_ranks(run.clock, matches.member_rank)
    start = member_to_common(run.clock, domain, member_column(matches, run.ranks, "start_ns"))
    instance = np.repeat(np.arange(matches.count), np.diff(matches.offsets))
    order = np.lexsort((start, instance))
    last = order[matches.offsets[1:] - 1]
    second = order[np.maximum(matches.offsets[1:] - 2, matches.offsets[:-1])]
    is_last = np.arange(len(start)) == last[instance]
    others = np.where(is_last, second[instance], last[instance])
    return instance + 1, matches.member_rank[last[instance]].astype(np.int64), start[others]


def inside(rows: Intervals, windows: Intervals | None) -> Int64Array:
    """Indices of the rows that overlap a window, disjoint and in order; all rows for None."""
    if windows is None:
        return np.arange(rows.size)
    if windows.size == 0:
        return np.empty(0, np.int64)
    at = np.searchsorted(windows.end, rows.start, side="right")
    begin = windows.start[np.minimum(at, windows.size - 1)]
    reaches = begin < np.maximum(rows.end, rows.start + 1)
    return np.flatnonzero((at < windows.size) & reaches)


def lanes_of(slices: Intervals) -> NDArray[np.int64]:
    """The lane of each slice, from 0; slices in one lane nest properly."""
    lanes = np.zeros(slices.size, np.int64)
    order = _outer_first(slices)
    if _nests(slices, order):
        return lanes
    open_ends: list[list[int]] = []
    starts, ends = slices.start[order].tolist(), slices.end[order].tolist()
    chosen = [_place(open_ends, start, end) for start, end in zip(starts, ends, strict=True)]
    lanes[order] = chosen
    return lanes


def _place(lanes: list[list[int]], start: int, end: int) -> int:
    """The first lane in which the slice fits; ``lanes`` holds the ends of the open slices."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def bracket_order(slices: Intervals) -> Int64Array:
    """Position of every bracket: the opening brackets of all slices, then the closing ones.

    At the same time, slices close before others open, inner slices close before outer ones, outer
    slices open before inner ones, and an empty slice closes right after it opens.
    """
    size = slices.size
    turn = np.empty(size, np.int64)
    turn[_outer_first(slices)] = np.arange(size)
    empty = slices.start == slices.end
    time = np.concatenate((slices.start, slices.end))
    phase = np.concatenate((np.where(empty, 2, 1), np.where(empty, 2, 0)))
    within = np.concatenate((2 * turn, np.where(empty, 2 * turn + 1, -turn)))
    place = np.empty(2 * size, np.int64)
    place[np.lexsort((within, phase, time))] = np.arange(2 * size)
    return place


def _outer_first(slices: Intervals) -> Int64Array:
    return np.lexsort((-slices.end, slices.start))


def _nests(slices: Intervals, order: Int64Array) -> bool:
    """Whether no two slices partly overlap."""
    start, end = slices.start[order], slices.end[order]
    if (start[1:] >= end[:-1]).all():
        return True
    place = bracket_order(Intervals(start, end))
    size = slices.size
    step = np.empty(2 * size, np.int64)
    step[place[:size]], step[place[size:]] = 1, -1
    depth = np.cumsum(step)
    opened, closed = depth[place[:size]], depth[place[size:]] + 1
    # Brackets of one depth open and close alternately, so the k-th closing one matches the k-th
    # opening one
    of_open = np.lexsort((place[:size], opened))
    of_close = np.lexsort((place[size:], closed))
    return bool((of_open == of_close).all())


PAGE = "https://ui.perfetto.dev"
HOST, PORT = "127.0.0.1", 9001
"""The only address of a user's machine from which the policy of :data:`PAGE` lets it fetch.

Source:
    Perfetto, ``tools/open_trace_in_ui`` and the policy in ``ui/src/frontend/index.ts``.
"""

_SHOWN = ({"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(distprof|findings)$"]},)
"""Tracks that the page unfolds: those of distprof itself."""


def address_of(file: Path, port: int) -> str:
    """What to open in a browser while :func:`serve` runs."""
    commands = quote(json.dumps(_SHOWN, separators=(",", ":")), safe="")
    return f"{PAGE}/#!/?url=http://{HOST}:{port}/{quote(file.name)}&startupCommands={commands}"


def serve(file: Path, told: Callable[[str], None], *, port: int = PORT) -> None:
    """Serve a file, and nothing else, until the page has fetched it."""
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        fix = f"end what listens there, such as another --open, or drag the file into {PAGE}"
        raise cannot_listen(HOST, port, error, fix=fix) from error
    with server:
        server.file = file
        told(address_of(file, server.server_port))
        while not server.is_fetched:
            server.handle_request()


class _Server(HTTPServer):
    file: Path
    is_fetched = False

    def handle_error(self, *_: object) -> None:
        """Wait for the next request: a browser that goes away in the middle may come back."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds for a request; others wait until then

    def do_OPTIONS(self) -> None:
        """Answer a browser that asks whether a page may fetch from this machine."""
        self._begin(204)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_GET(self) -> None:
        """Send the file."""
        file = self.server.file
        # Another name of this machine would mean that a foreign page got here by its own name
        is_asked_here = self.headers.get("Host") == f"{HOST}:{self.server.server_port}"
        if not is_asked_here or self.path != f"/{quote(file.name)}":
            self.send_error(404)
            return
        with file.open("rb") as data:
            self._begin(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            shutil.copyfileobj(data, self.wfile)
        self.server.is_fetched = True

    def _begin(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Access-Control-Allow-Origin", PAGE)
        self.send_header("Cache-Control", "no-store")

    def log_message(self, *_: object) -> None:
        """Say nothing: a request is not an event for the user."""
