"""Measure a rank that was built by hand, or a run, and ask for its sections by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.documents.saved import Report
from distprof.intervals import Intervals
from distprof.run.run import Run
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import ABSENT
from distprof.sections.context import (
    Detail,
    PauseStats,
    RankAnalyses,
    RankAnalysis,
    RankContext,
)
from distprof.sections.engine import analyzer_of, sections_of
from distprof.sections.measure_run import capture_window, measure_rank, measure_run
from tests.builders import RankBuilder


def measured(
    rank: RankBuilder | RankTables,
    *,
    windows: Sequence[tuple[int, int]] | None = None,
    wait_end: Sequence[int] | None = None,
    axis: Sequence[str] | None = None,
    is_cpu: bool = False,
) -> RankAnalysis:
    """Measure inside ``windows``: by default the rank's steps, or its capture without steps.

    ``wait_end`` and ``axis`` have one entry per collective, in order of start.
    """
    tables = rank if isinstance(rank, RankTables) else rank.tables()
    context = context_of(rank, windows=windows, wait_end=wait_end, axis=axis, is_cpu=is_cpu)
    return measure_rank(tables, context)


def context_of(
    rank: RankBuilder | RankTables,
    *,
    windows: Sequence[tuple[int, int]] | None = None,
    wait_end: Sequence[int] | None = None,
    axis: Sequence[str] | None = None,
    is_cpu: bool = False,
) -> RankContext:
    """What :func:`measured` measures with."""
    tables = rank if isinstance(rank, RankTables) else rank.tables()
    rows = len(tables.collectives)
    if windows is not None:
        spans = Intervals.of(*windows)
    elif len(tables.steps):
        spans = intervals_of(tables.steps)
    else:
        spans = capture_window(tables.activity)
    labels = list(axis or ["world"] * rows)
    names = tuple(sorted(set(labels)))
    return RankContext(
        rank=0 if isinstance(rank, RankTables) else rank.number,
        steps=np.arange(spans.size, dtype=np.int64),
        windows=spans,
        wait_end_ns=np.array(wait_end or [ABSENT] * rows, dtype=np.int64),
        axis=np.array([names.index(label) for label in labels], dtype=np.int32),
        axis_names=names,
        is_cpu=is_cpu,
        is_capture=windows is None and not len(tables.steps),
    )


class Measured:
    """A run whose ranks were measured: ``step_time``, ``overlap`` and others of them alone."""

    def __init__(self, run: Run, analyses: RankAnalyses) -> None:
        self._run = run
        self.analyses = analyses

    def __getattr__(self, name: str) -> Any:
        analyzer = analyzer_of(sections_of(Report)[name])
        known = {Run: self._run, RankAnalyses: self.analyses, Detail: Detail()}
        return analyzer.make(**{key: known[need] for key, need in analyzer.needs.items()})


def measure(run: Run, **options: Any) -> Measured:
    """Measure every rank of a run."""
    return Measured(run, measure_run(run, **options))


def sync_calls(analysis: RankAnalysis) -> tuple[PauseStats, ...]:
    """Calls that waited for the GPU, by name."""
    return tuple(pause for pause in analysis.cpu_pauses if pause.kind == "sync")
