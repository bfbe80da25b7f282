"""One contestant of a benchmark, run in a separate process: ``contestant.py WHAT SOURCE``.

It prints the CPU seconds of its work, without interpreter start-up and imports, and the overlap
that it found, in percent, so that a benchmark can show that all contestants did the same work.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def distprof_full(source: str) -> float:
    """Every row to tables and a fresh Parquet cache, then the overlap."""
    import distprof

    with tempfile.TemporaryDirectory() as cache:
        (rank,) = distprof.open_run(source, cache_dir=cache).ranks
        return _overlap(rank.tables.load().activity)


def distprof_device(source: str) -> float:
    """Device rows only, no cache, then the overlap."""
    from distprof.ingest.communication import Classifier
    from distprof.ingest.kineto.reader import read_trace
    from distprof.terms import ActivityKind

    activity = read_trace(source, rows="device").activity
    is_communication = Classifier().communication_rows(activity.coded("name"))
    is_communication &= activity["kind"] == ActivityKind.COMPUTATION
    activity["kind"][is_communication] = ActivityKind.COMMUNICATION
    return _overlap(activity)


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


def _overlap(activity: Any) -> float:
    from distprof.intervals import intersect, total, union
    from distprof.run.tables import intervals_of
    from distprof.terms import ActivityKind

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


def _import(what: str) -> None:
    """Import the contestant's modules, so that its work can be separated from its start.

    All contestants, like the command ``distprof``, run without numpy's threads for linear algebra:
    none uses them, and they would spin for a tenth of a second during the work.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if what.startswith("hta"):
        import hta.trace_analysis  # noqa: F401
    elif what == "distprof-device":
        import distprof.ingest.communication
        import distprof.ingest.kineto.reader
    else:
        import pyarrow.parquet  # noqa: F401

        import distprof.api
        import distprof.ingest.open  # noqa: F401
        from distprof.ingest.kinds import known_sources

        known_sources()  # imports the module of each kind


CONTESTANTS: dict[str, Callable[[str], float]] = {
    "distprof-full": distprof_full,
    "distprof-device": distprof_device,
    "distprof-analyze": distprof_analyze,
    "hta-overlap": hta_overlap,
}


if __name__ == "__main__":
    what, path = sys.argv[1:]
    _import(what)
    started = time.process_time()
    found = CONTESTANTS[what](path)
    print(f"work {time.process_time() - started:.3f} CPU s")
    print(f"overlap {found:.2f} %")
