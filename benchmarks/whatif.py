"""What-if on operation tables: the whole program on published tables, and large simulations.

A fresh process analyses each table. This process generates, writes, reads and simulates a table of
64 workers with 10,000 operations each. Times are CPU seconds of one core.

    python benchmarks/whatif.py
    python benchmarks/whatif.py --tables /path/to/folder    # every trace-*.parquet below it
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measuring import MB, machine, measure, medians, print_table, versions  # noqa: E402

from distprof.ingest.kinds.operation_table import read_operation_table  # noqa: E402
from distprof.run.evidence import OperationLog  # noqa: E402
from distprof.sections.whatif.operation_graph import lay_out  # noqa: E402
from distprof.sections.whatif.operation_replay import OperationReplay, replay_of  # noqa: E402
from distprof.sections.whatif.operations import simulate_operations  # noqa: E402
from tests.operation_logs import log_of, pipeline_rows, write_table  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "straggler"
TABLE_SECONDS, TABLE_BYTES, SIMULATION_SECONDS = 2.0, 400 * MB, 3.0
SHAPE = {"dp": 8, "stages": 8, "micro_batches": 1_818}
"""64 workers with 10,000 operations each: 5.5 per micro-batch on average, and three at the end."""

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=GOLDEN, help="folder of published tables")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(machine(), versions("numpy", "pyarrow"), sep="\n")
    slow = published(sorted(args.tables.rglob("trace-*.parquet")), args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        slow += at_scale(Path(folder))
    if slow:
        raise SystemExit("beyond its limit: " + ", ".join(slow))


def published(tables: list[Path], rounds: int) -> list[str]:
    """Run the whole program on each table. Returns the names of tables beyond a limit."""
    program = (sys.executable, "-m", "distprof", "analyze")
    rows, slow = [], []
    for table in tables:
        runs = [measure((*program, str(table), "--format", "json")) for _ in range(rounds)]
        cost = medians(runs)
        name = table.stem
        if cost.cpu_s > TABLE_SECONDS or cost.peak_bytes > TABLE_BYTES:
            slow.append(name)
        rows.append(
            (name, f"{cost.wall_s:.2f}", f"{cost.cpu_s:.2f}", f"{cost.peak_bytes / MB:.0f}")
        )
    limits = ("", f"{TABLE_SECONDS:.0f}", f"{TABLE_BYTES / MB:.0f}")
    print_table(("table", "wall s", "CPU s", "peak MB"), [*rows, ("limit", *limits)])
    return slow


def at_scale(folder: Path) -> list[str]:
    """Measure the parts of the work on 64 workers with 10,000 operations each."""
    rng = np.random.default_rng(0)
    log = log_of(pipeline_rows(lambda *_: int(rng.integers(10**6, 2 * 10**6)), **SHAPE), unit=1)
    path = write_table(folder / "many.parquet", log)
    _, reading = timed(lambda: read_operation_table(str(path)))
    replay, graph = timed(lambda: graph_of(log))
    steps, simulation = timed(replay.simulated)
    if steps.tolist() != list(log.step_ns.values()):
        raise SystemExit("the simulated step is not the one that was made")
    _, everything = timed(lambda: simulate_operations(log))
    scenarios = 4 + 2 * 11 + 3 * SHAPE["stages"] + 16
    print(f"\n{len(log.operations):,} operations of 64 workers, CPU s")
    parts = (
        ("read the Parquet file", reading),
        ("graph", graph),
        ("simulate once", simulation),
        ("graph and simulate", graph + simulation),
        (f"all of the analysis, about {scenarios} simulations", everything),
    )
    rows = [(what, f"{s:.2f}", f"{s / reading:.1f}") for what, s in parts]
    print_table(("what", "CPU s", "× reading"), rows)
    return ["64 workers"] if graph + simulation > SIMULATION_SECONDS else []


def graph_of(log: OperationLog) -> OperationReplay:
    rows = lay_out(log)
    assert rows is not None
    return replay_of(rows)


def timed(function: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    return function(), time.process_time() - began


if __name__ == "__main__":
    main()
