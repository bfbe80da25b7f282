"""Cost of ``distprof watch``: CPU time of one look, and memory, by number of ranks.

::

    python -m benchmarks.watch_cost
    python -m benchmarks.watch_cost --ranks 64 1024 4096 --looks 100

Each rank adds one step between two looks. Limit: a look at 1,024 ranks takes 250 ms of CPU time, an
eighth of a core at the default of one look in 2 s.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.measuring import machine, print_table, versions
from distprof.artefacts.records import Header, Phase, StepRecord
from distprof.artefacts.run_file import RankFile
from distprof.ingest.job.growing import GrowingRun
from distprof.verbs.watch.alerts import default_levels
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.state import JobWatch

MS = 1_000_000
PHASES = ("input", "forward", "backward", "optimizer")


def line(step: int, rank: int) -> bytes:
    """One step of one rank, as long as a real one."""
    start = 1_750_000_000_000 * MS + step * 500 * MS
    record = StepRecord(
        step=step,
        start_ns=start,
        end_ns=start + 500 * MS,
        phases=tuple(
            Phase(name, start + i * MS, start + 100 * MS) for i, name in enumerate(PHASES)
        ),
        tokens=4_096,
        loss=2.5,
        cpu_ns=400 * MS + rank * 1_000,
        run_queue_ns=0,
        input_asleep_ns=0,
    )
    return msgspec.json.encode(record) + b"\n"


def begin(folder: Path, ranks: int) -> list[Path]:
    """A run directory whose ranks have recorded 100 steps."""
    files = []
    for rank in range(ranks):
        rank_dir = folder / f"rank{rank:05d}"
        rank_dir.mkdir()
        said = RankFile(rank=rank, pid=1, device="cpu", started_ns=1)
        (rank_dir / "rank.json").write_bytes(msgspec.json.encode(said))
        file = rank_dir / "steps.jsonl"
        header = msgspec.json.encode(Header(schema="distprof.steps/1", rank=rank)) + b"\n"
        file.write_bytes(header + b"".join(line(step, rank) for step in range(100)))
        files.append(file)
    return files


def measure(ranks: int, looks: int) -> tuple[float, float]:
    """CPU seconds of the first look and of a later one."""
    with tempfile.TemporaryDirectory() as folder:
        files = begin(Path(folder), ranks)
        live, job = GrowingRun(folder), JobWatch(folder, default_levels())
        spent = []
        for look in range(looks + 1):
            began = time.process_time()
            job.take(live.look(), now_s=float(look), now_ns=look)
            report_on(job, now_s=float(look), now_ns=look)
            spent.append(time.process_time() - began)
            for rank, file in enumerate(files):
                with file.open("ab") as stream:
                    stream.write(line(100 + look, rank))
        return spent[0], statistics.median(spent[1:])


def main() -> None:
    """Measure the smallest job first, so that peak memory is that of each job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1_024])
    parser.add_argument("--looks", type=int, default=30)
    options = parser.parse_args()
    rows = []
    for ranks in sorted(options.ranks):
        first, later = measure(ranks, options.looks)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        rows.append((f"{ranks:,}", f"{first * 1e3:.0f}", f"{later * 1e3:.0f}", f"{peak:.0f}"))
    print(machine())
    print(versions("distprof", "numpy", "msgspec"))
    print_table(("ranks", "first look, CPU ms", "a look, CPU ms", "memory MB"), rows)


if __name__ == "__main__":
    main()
