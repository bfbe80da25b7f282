"""Overlap of many kernels: distprof compared with HTA, or with HTA's formulation if it is missing.

Both sides start from the same rows (start, duration, coded kernel name) and end at the share of
communication that overlaps with computation. Times are CPU seconds of one process, both in the same
run. If HTA is installed, its own ``get_comm_comp_overlap`` runs, otherwise the same steps written
out in pandas.

    python benchmarks/overlap.py            # one million kernels
    python benchmarks/overlap.py --full     # ten million
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pandas as pd

from distprof.run.tables import ACTIVITY
from distprof.schema import Coded, Table
from distprof.sections.measure_run import capture_window
from distprof.sections.overlap.measure import rank_overlap
from distprof.sections.time.measure import rank_timeline
from distprof.terms import ActivityKind

NAMES = tuple(
    f"ncclDevKernel_{i}" if i % 20 == 0 else f"void at::native::kernel_{i}<float>"
    for i in range(400)
)
COMMUNICATION = re.compile(r"^nccl|.*ncclKernel|^hccl|^hip")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--full", action="store_true", help="ten million kernels")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = make_rows(10_000_000 if args.full else args.kernels, args.seed)
    runs = [timed(with_distprof, *rows) for _ in range(5)]
    ours, first_seconds = runs[0]
    our_seconds = statistics.median(seconds for _, seconds in runs)
    has_hta = find_spec("hta") is not None
    rival, name = (with_hta, "HTA") if has_hta else (row_wise, "row-wise pandas")
    theirs, their_seconds = timed(rival, *rows)
    print(f"{len(rows[0]):,} kernels, overlap {ours:.6f} and {theirs:.6f}")
    print(f"{name} {their_seconds:.2f} CPU s")
    for what, seconds in (("median of five", our_seconds), ("first, memory new", first_seconds)):
        print(f"distprof {seconds:.2f} CPU s ({what}): ratio {their_seconds / seconds:.0f}")
    if abs(ours - theirs) > (1e-4 if has_hta else 1e-9):  # HTA rounds to hundredths of a percent
        raise SystemExit("the two disagree")


def make_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, duration and name code in file order: launch order, streams interleaved."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, len(NAMES), count).astype(np.int32)
    duration = random.integers(1_000, 20_000, count)
    start = np.cumsum(duration + random.integers(100, 3_000, count)) - duration
    start += random.integers(0, 20_000, count)  # other streams run a little behind
    duration = np.where(codes % 20 == 0, duration * 5, duration)
    return start, duration, codes  # small enough to stay exact in the float64 of a shifted column


def timed(function: Callable[..., float], *args: np.ndarray) -> tuple[float, float]:
    began = time.process_time()
    return function(*args), time.process_time() - began


def with_distprof(start: np.ndarray, duration: np.ndarray, codes: np.ndarray) -> float:
    """Classify each name once; the rest is arithmetic on sets of intervals."""
    kinds = [
        ActivityKind.COMMUNICATION if COMMUNICATION.match(name) else ActivityKind.COMPUTATION
        for name in NAMES
    ]
    activity = Table(
        ACTIVITY,
        {
            "start_ns": start,
            "end_ns": start + duration,
            "name": Coded(codes, NAMES),
            "kind": np.array(kinds, dtype=np.int8)[codes],
            "stream": np.zeros(len(codes), dtype=np.int64),
            "device": np.zeros(len(codes), dtype=np.int32),
            "correlation": np.zeros(len(codes), dtype=np.int64),
            "bytes": np.zeros(len(codes), dtype=np.int64),
            "blocks": np.zeros(len(codes), dtype=np.int32),
        },
    )
    ratio = rank_overlap(0, capture_window(activity), rank_timeline(activity)).overlap_ratio
    return float("nan") if ratio is None else ratio


def with_hta(start: np.ndarray, duration: np.ndarray, codes: np.ndarray) -> float:
    """HTA itself, on a trace object filled with the rows."""
    from hta.analyzers.communication_analysis import CommunicationAnalysis
    from hta.common.trace import Trace

    trace = Trace(trace_files={}, trace_dir="")
    trace.symbol_table.add_symbols(NAMES)
    trace.traces[0] = pd.DataFrame({"ts": start, "dur": duration, "name": codes, "stream": 7})
    result = CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)
    return float(result["comp_comm_overlap_pctg"].iloc[0]) / 100


def row_wise(start: np.ndarray, duration: np.ndarray, codes: np.ndarray) -> float:
    """HTA's steps: a kind for each row by regular expression, merged frames, a sorted sweep."""
    frame = pd.DataFrame({"ts": start, "dur": duration, "name": codes})
    frame["kind"] = frame[["name"]].apply(
        lambda row: "comm" if COMMUNICATION.match(NAMES[row["name"]]) else "comp", axis=1
    )
    comp = merged(frame[frame["kind"] == "comp"].copy())
    comm = merged(frame[frame["kind"] == "comm"].copy())
    sweep = pd.concat(
        [
            pd.DataFrame({"time": comp["ts"], "status": 1}),
            pd.DataFrame({"time": comp["end"], "status": -1}),
            pd.DataFrame({"time": comm["ts"], "status": 2}),
            pd.DataFrame({"time": comm["end"], "status": -2}),
        ]
    ).sort_values(by="time")
    lasts = sweep["time"].shift(-1) - sweep["time"]
    overlapped = lasts[sweep["status"].cumsum() == 3].sum()
    return float(overlapped / (comm["end"] - comm["ts"]).sum())


def merged(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.sort_values(by="ts")
    frame["end"] = frame["ts"] + frame["dur"]
    frame["group"] = (frame["ts"] > frame["end"].shift().cummax()).cumsum()
    return frame.groupby("group", as_index=False).agg({"ts": "min", "end": "max"})


if __name__ == "__main__":
    main()
