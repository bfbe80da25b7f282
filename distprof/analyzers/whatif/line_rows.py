"""Collectives of the main lines of all ranks, as columns: what a graph of the run is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.context import MainLine, RankAnalysis
from distprof.analyzers.gradients import needless_rows
from distprof.analyzers.matched import RowIndex
from distprof.run.run import Rank, Run
from distprof.schema import ABSENT, Int64Array

__all__ = ["LineRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRows:
    """COLLECTIVES rows of all lines, one rank after another; times since the earliest line."""

    index: RowIndex
    lines: Sequence[MainLine]
    base: Int64Array  # first segment of each rank
    start_ns: Int64Array  # on the common clock
    end_ns: Int64Array
    is_timed: NDArray[np.bool_]
    stream: Int64Array
    kind: NDArray[np.int8]
    bytes: Int64Array
    axis: NDArray[np.int32]
    axis_names: tuple[str, ...]
    issue: Int64Array  # as in the line, numbered through; ABSENT outside
    resume: Int64Array
    exposed: NDArray[np.bool_]
    begin_ns: Int64Array  # of each rank's line, common clock
    epoch_ns: int
    is_needless: NDArray[np.bool_]  # gradients that are reduced again before the update

    @staticmethod
    def of(
        run: Run,
        index: RowIndex,
        lines: Sequence[MainLine],
        analyses: Mapping[int, RankAnalysis],
    ) -> LineRows:
        """Of the ranks that ``index`` numbers, ``lines`` in its order."""
        base = np.concatenate(([0], np.cumsum([len(line) for line in lines]))).astype(np.int64)
        begin = [
            int(run.clock.to_common(rank.rank, np.array([line.start_ns], np.int64))[0])
            for rank, line in zip(index.ranks, lines, strict=True)
        ]
        epoch = min(begin)
        axis, names = _axes([analyses[rank.rank] for rank in index.ranks])

        def times(column: str) -> Int64Array:
            def of_rank(rank: Rank) -> Int64Array:
                return run.clock.to_common(rank.rank, rank.collectives[column]) - epoch

            return index.column(of_rank).astype(np.int64)

        def numbered(parts: Sequence[Int64Array]) -> Int64Array:
            moved = [
                np.where(part == ABSENT, ABSENT, part + low)
                for part, low in zip(parts, base.tolist(), strict=False)
            ]
            return np.concatenate(moved).astype(np.int64)

        return LineRows(
            index=index,
            lines=lines,
            base=base,
            start_ns=times("start_ns"),
            end_ns=times("end_ns"),
            is_timed=index.column(lambda rank: rank.collectives["is_timed"]).astype(np.bool_),
            stream=index.column(lambda rank: rank.collectives["stream"]),
            kind=index.column(lambda rank: rank.collectives["kind"]).astype(np.int8),
            bytes=index.column(lambda rank: rank.collectives["bytes"]),
            axis=axis,
            axis_names=names,
            issue=numbered([line.issue for line in lines]),
            resume=numbered([line.resume for line in lines]),
            exposed=np.concatenate([line.exposed for line in lines]),
            begin_ns=np.array(begin, dtype=np.int64) - epoch,
            epoch_ns=epoch,
            is_needless=index.column(lambda rank: needless_rows(analyses[rank.rank])).astype(
                np.bool_
            ),
        )

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Rows that matter to some line."""
        some: NDArray[np.bool_] = (self.issue != ABSENT) | (self.resume != ABSENT)
        return some


def _axes(analyses: Sequence[RankAnalysis]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Axis of each row among the names of all ranks."""
    names = tuple(sorted({name for analysis in analyses for name in analysis.row_axis_names}))
    number = {name: i for i, name in enumerate(names)}
    parts = [
        np.array([number[name] for name in analysis.row_axis_names] or [0], dtype=np.int32)[
            analysis.row_axis
        ]
        for analysis in analyses
    ]
    return np.concatenate(parts).astype(np.int32), names
