"""The picture of the how-to on merged time lines: one step of two nodes, naive and corrected.

A simulated job, in which the clock of the second node is 6 ms behind, is read and aligned like any
other. The upper half draws the unchanged times of its traces, the lower half those of an export.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from distprof.api import examine, open_run
from distprof.run.run import Run
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind
from distprof.units import format_duration
from tests.simulator.job import MS, Collective, Compute, SimulatedJob, SlowDevice, Wait

__all__ = ["clock_picture"]

OFFSET_NS = -6 * MS
_STEP = (Compute(ns=5 * MS, name="gemm"), Collective(bytes=25 << 20, transfer_ns=2 * MS), Wait())
_WIDTH, _LEFT, _ROW, _BAR = 760, 70, 34, 22
_COLORS = {
    "computation": "#5b8c5a",
    "collective": "#c44e52",
    "wait": "#e0b050",
    "transfer": "#4c72b0",
}

_Box = tuple[int, int, int, str]  # row, start, end, kind
_Times = Callable[[int, Int64Array], Int64Array]


def clock_picture() -> str:
    """The picture as SVG."""
    job = SimulatedJob(
        ranks_per_node=1,
        num_steps=3,
        program=_STEP,
        faults=(SlowDevice(rank=1, factor=1.4),),
        compute_noise=0.0,
        clock_offset_ns=(0, OFFSET_NS),
    )
    with tempfile.TemporaryDirectory() as folder:
        job.run().write_kineto(Path(folder))
        run = open_run(folder, use_cache=False)
        waits = examine(run).analyses.wait_ends
        naive = list(_boxes(run, lambda _, own: own, {}))
        merged = list(_boxes(run, run.clock.to_common, waits))
    residual = format_duration(int(run.clock.residual_ns.max()))
    begin = min(start for _, start, _, _ in (*naive, *merged))
    span = max(end for _, _, end, _ in (*naive, *merged)) - begin
    first, second = (
        next(end for row, _, end, kind in naive if row == r and kind == "collective")
        for r in (0, 1)
    )
    apart = format_duration(abs(second - first))
    titles = (
        f"Merged naively: the same all_reduce ends {apart} earlier on rank 1 than on rank 0",
        f"Exported by distprof: it ends on both at once (±{residual}), and rank 0 waits for rank 1",
    )
    parts = [*_half(titles[0], naive, 0, begin, span), *_half(titles[1], merged, 112, begin, span)]
    return "\n".join((*_HEAD, *parts, *_legend(226), "</svg>", ""))


def _boxes(run: Run, times: _Times, waits: Mapping[int, Int64Array]) -> Iterator[_Box]:
    """Activities of both ranks in the middle step, at times given by ``times``.

    Args:
        run: The recording.
        times: Converts a rank's own times to those to draw.
        waits: Start of the last member of each collective; if empty, collectives are drawn whole.
    """
    for row, rank in enumerate(run.ranks):
        window = tuple(int(rank.steps[name][1]) for name in ("start_ns", "end_ns"))
        activity = rank.tables.load().activity
        kernels = activity.take(activity["kind"] == ActivityKind.COMPUTATION)
        for at in _inside(kernels, window):
            marks = np.array([kernels["start_ns"][at], kernels["end_ns"][at]])
            yield (row, *times(rank.rank, marks).tolist(), "computation")
        table = rank.collectives
        for at in _inside(table, window):
            start, end = table["start_ns"][at], table["end_ns"][at]
            if rank.rank not in waits:
                yield (row, *times(rank.rank, np.array([start, end])).tolist(), "collective")
                continue
            middle = np.clip(waits[rank.rank][at], start, end)
            low, cut, high = times(rank.rank, np.array([start, middle, end])).tolist()
            yield from ((row, low, cut, "wait"), (row, cut, high, "transfer"))


def _inside(table: Table, window: tuple[int, ...]) -> list[int]:
    inside = (table["start_ns"] >= window[0]) & (table["end_ns"] <= window[1])
    rows: list[int] = np.flatnonzero(inside).tolist()
    return rows


_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 250" role="img"',
    '  font-family="sans-serif" font-size="13">',
    "<title>Two ranks of two nodes in one time line, merged naively and by distprof</title>",
    f'<rect width="{_WIDTH}" height="250" fill="#ffffff"/>',
)


def _half(title: str, boxes: list[_Box], top: int, begin: int, span: int) -> Iterator[str]:
    scale = (_WIDTH - _LEFT - 10) / span
    yield f'<text x="10" y="{top + 20}" font-weight="bold" fill="#222222">{title}</text>'
    for row in (0, 1):
        y = top + 32 + row * _ROW
        yield f'<text x="10" y="{y + 16}" fill="#222222">rank {row}</text>'
    for row, start, end, kind in boxes:
        x, width = _LEFT + (start - begin) * scale, max((end - start) * scale, 0.5)
        y = top + 32 + row * _ROW
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" '
            f'fill="{_COLORS[kind]}"><title>{kind}</title></rect>'
        )


def _legend(top: int) -> Iterator[str]:
    words = {
        "computation": "computation",
        "collective": "all_reduce",
        "wait": "waits for rank 1",
        "transfer": "transfer",
    }
    for i, (kind, text) in enumerate(words.items()):
        x = _LEFT + i * 150
        yield f'<rect x="{x}" y="{top}" width="14" height="14" fill="{_COLORS[kind]}"/>'
        yield f'<text x="{x + 20}" y="{top + 12}" fill="#222222">{text}</text>'
