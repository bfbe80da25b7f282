"""Marks in a history: the rates of false marks and of marked losses, and the time they take.

::

    python -m benchmarks.history --histories 200
    python -m benchmarks.history --runs 10000     # reading, loose and put together

A history has 30 commits; the loss begins with the sixteenth and stays. Runs of a commit share the
deviation of its session, and each run has its own deviation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distprof.artefacts.summary_file import Fingerprint, SummaryFile
from distprof.verbs.gate.baseline import find_metric
from distprof.verbs.history import HISTORY_METRICS, by_series, trace_metric
from distprof.verbs.history.dataset import append, compact, read

COMMITS, LOSS_AT = 30, 15
STEP_NS, DAY_NS = 100_000_000, 86_400_000_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """The variation of runs, and the loss."""

    repeats: int
    session: float
    own: float
    loss: float

    def __str__(self) -> str:
        """For example ``3 runs, 1 % sessions, 1 % own, 5 % lost``."""
        parts = (("sessions", self.session), ("own", self.own), ("lost", self.loss))
        return f"{self.repeats} runs, " + ", ".join(f"{100 * v:g} % {name}" for name, v in parts)


CASES = (
    Case(repeats=1, session=0.01, own=0.01, loss=0.0),
    Case(repeats=1, session=0.03, own=0.03, loss=0.0),
    Case(repeats=3, session=0.02, own=0.02, loss=0.0),
    Case(repeats=1, session=0.005, own=0.01, loss=0.05),
    Case(repeats=3, session=0.01, own=0.01, loss=0.05),
    Case(repeats=1, session=0.02, own=0.02, loss=0.1),
)


def simulated(case: Case, random: np.random.Generator) -> list[SummaryFile]:
    """A history's runs."""
    levels = np.exp(case.session * random.standard_normal((COMMITS, 1)))
    levels[LOSS_AT:] *= 1 + case.loss
    own = np.exp(case.own * random.standard_normal((COMMITS, case.repeats)))
    return [
        run(int(STEP_NS * level), day, number)
        for day, repeats in enumerate((levels * own).tolist())
        for number, level in enumerate(repeats)
    ]


def run(step_ns: int, day: int, number: int) -> SummaryFile:
    """One run of a commit."""
    config = {f"training.option{i}": str(i) for i in range(30)}
    return SummaryFile(
        distprof_version="1",
        git_commit=f"c{day}",
        created_ns=1_700_000_000_000_000_000 + day * DAY_NS + number,
        fingerprint=Fingerprint(world_size=8, device="H100", workload="ddp", config=config),
        step_ns=(step_ns,) * 50,
    )


def marks(case: Case, histories: int, seed: int) -> str:
    """A row: false marks, and the share of losses marked at their commit."""
    metric = find_metric("step_time", HISTORY_METRICS)
    assert metric is not None
    false = right = 0
    began = time.perf_counter()
    for number in range(histories):
        runs = simulated(case, np.random.default_rng(seed + number))
        history = trace_metric(by_series(runs), metric, source="")
        found = [
            i
            for i, point in enumerate(history.series[0].points)
            if point.state in ("regressed", "improved")
        ]
        true = {LOSS_AT} if case.loss else set()
        right += bool(true & set(found))
        false += len(set(found) - true)
    took = (time.perf_counter() - began) / histories / COMMITS
    hit = f"{right / histories:.1%}" if case.loss else "-"
    return (
        f"{case!s:48} | {false:4} of {histories * COMMITS} | {hit:>6} | {1e3 * took:.1f} ms a point"
    )


def reading(runs: int) -> None:
    """Seconds to read many runs."""
    with tempfile.TemporaryDirectory() as folder:
        timed("add", lambda: append(folder, [run(STEP_NS + i, i // 3, i % 3) for i in range(runs)]))
        timed("read, loose", lambda: len(read(folder)[0]))
        timed("compact", lambda: compact(folder))
        timed("read, together", lambda: len(read(folder)[0]))


def timed(name: str, work: Callable[[], object]) -> None:
    """Print the result of a call and its time."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:16} {wall:6.2f} s wall, {cpu:6.2f} s CPU  {found}")


def main() -> None:
    """Print both tables, or the requested one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.runs:
        reading(arguments.runs)
    if arguments.histories:
        print("runs of each commit | marked by chance | marked at its commit |")
        for case in CASES:
            print(marks(case, arguments.histories, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
