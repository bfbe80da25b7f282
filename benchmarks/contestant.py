"""One contestant of a benchmark, run as a process of its own: ``contestant.py WHAT SOURCE``.

Prints the overlap it found, in percent, so that a benchmark can show that all did the same work.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def distprof_full(source: str) -> float:
    """Every row to tables and a fresh Parquet cache, then the overlap."""
    return _distprof_overlap(source, rows="all")


def distprof_device(source: str) -> float:
    """Device rows only, no cache, then the overlap."""
    return _distprof_overlap(source, rows="device")


def distprof_analyze(source: str) -> float:
    """All of ``distprof analyze``, nothing cached: cross-rank matching, rules, report."""
    import distprof

    with tempfile.TemporaryDirectory() as cache:
        run = distprof.open_run(source, cache_dir=cache)
        return _percent(distprof.analyze(run).overlap.ranks[0].overlap_ratio)


def hta_overlap(source: str) -> float:
    """HTA's load and its overlap of communication with computation."""
    frame = _hta(source).get_comm_comp_overlap(visualize=False)
    return float(frame["comp_comm_overlap_pctg"].iloc[0])


def _distprof_overlap(source: str, *, rows: str) -> float:
    import distprof
    from distprof.intervals import intersect, total, union
    from distprof.run.tables import intervals_of
    from distprof.terms import ActivityKind

    with tempfile.TemporaryDirectory() as cache:
        run: Any = distprof.open_run(source, rows=rows, cache_dir=cache)  # type: ignore[arg-type]
        activity = run.ranks[0].tables.load().activity
        of_kind = {
            kind: union(intervals_of(activity.take(activity["kind"] == kind)))
            for kind in (ActivityKind.COMMUNICATION, ActivityKind.COMPUTATION)
        }
    communication = of_kind[ActivityKind.COMMUNICATION]
    shared = intersect(communication, of_kind[ActivityKind.COMPUTATION])
    return _percent(total(shared) / total(communication) if communication.size else None)


def _percent(ratio: float | None) -> float:
    return float("nan") if ratio is None else 100 * ratio


def _hta(source: str) -> Any:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    if Path(source).is_dir():
        return TraceAnalysis(trace_dir=source)
    return TraceAnalysis(trace_files={0: source})


CONTESTANTS: dict[str, Callable[[str], float]] = {
    "distprof-full": distprof_full,
    "distprof-device": distprof_device,
    "distprof-analyze": distprof_analyze,
    "hta-overlap": hta_overlap,
}


if __name__ == "__main__":
    what, path = sys.argv[1:]
    print(f"overlap {CONTESTANTS[what](path):.2f} %")
