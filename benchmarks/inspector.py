"""``distprof analyze`` on a folder of NCCL Inspector's records: MB per CPU second, and memory.

Records come from a generated job (``tests/inspector_records.py``), repeated with later numbers and
times until the folder has the requested size. One rank is late in the second quarter. The answer is
also checked.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import MB, Cost, machine, measure, print_table, versions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.inspector_records import START_US, Job

RANKS = 8
LATE = 5
STEPS = 500
_SEQ = re.compile(r'"coll_sn":(\d+)')
_TIME = re.compile(r'"dump_timestamp_us":(\d+)')


def write(folder: Path, num_bytes: int) -> int:
    """Files of all ranks; returns the bytes."""
    sizes = 0
    on_time = Job(ranks=RANKS, per_node=4, steps=STEPS)
    behind = Job(ranks=RANKS, per_node=4, steps=STEPS, late_us=lambda _, rank: 2e4 * (rank == LATE))
    block = sum(len(line) + 1 for rank in range(RANKS) for line in on_time.lines(rank))
    repeats = max(4, round(num_bytes / block))
    for rank in range(RANKS):
        path = folder / f"{on_time.host(rank)}-pid{on_time.pid(rank)}.log"
        with path.open("w") as file:
            for repeat in range(repeats):
                is_late = repeats // 4 <= repeat < repeats // 2
                for line in _later(behind if is_late else on_time, rank, repeat):
                    file.write(line)
        sizes += path.stat().st_size
    return sizes


def _later(job: Job, rank: int, repeat: int) -> Iterator[str]:
    """The job's records, moved to a later time."""
    shift = repeat * STEPS
    text = "\n".join(_lines(job, rank))
    text = _SEQ.sub(lambda m: f'"coll_sn":{int(m[1]) + shift}', text)
    yield _TIME.sub(lambda m: f'"dump_timestamp_us":{int(m[1]) + shift * job.step_us}', text) + "\n"


_KEPT: dict[tuple[int, int], list[str]] = {}


def _lines(job: Job, rank: int) -> list[str]:
    key = (id(job), rank)
    if key not in _KEPT:
        _KEPT[key] = list(job.lines(rank))
    return _KEPT[key]


def check(cost: Cost) -> str:
    """Check the rank that is named as late, and its time."""
    report = json.loads(cost.output[cost.output.index("{") :])
    log = report["collective_log"]
    spells = [one for one in log["spells"] if one["wait_ratio"] > 0.2]
    whole = log["end_ns"] - START_US * 1_000
    if [one["rank"] for one in spells] != [LATE]:
        raise RuntimeError(f"the late rank is not named: {spells}")
    start, end = ((spells[0][name] - START_US * 1_000) / whole for name in ("start_ns", "end_ns"))
    if abs(start - 0.25) > 0.03 or abs(end - 0.5) > 0.03:
        raise RuntimeError(f"the time is wrong: {start:.3f} to {end:.3f}")
    return f"one in {log['sampled_one_in']}"


def main() -> None:
    """Measure folders of one or several sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1_000])
    parser.add_argument("--full", action="store_true", help="also 10 GB")
    parser.add_argument("--folder", type=Path, help="where folders are made")
    options = parser.parse_args()
    rows = []
    for size in (*options.mb, *([10_000] if options.full else [])):
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            written = write(Path(scratch), int(size * MB))
            command = [sys.executable, "-m", "distprof", "analyze", scratch, "--format", "json"]
            cost = measure(command)
        sampled = check(cost)
        rows.append(
            (
                f"{written / MB:,.0f} MB",
                f"{cost.cpu_s:.1f} s",
                f"{written / MB / cost.cpu_s:.0f}",
                f"{cost.peak_bytes / MB:.0f} MB",
                sampled,
            )
        )
    print(machine(), versions("numpy", "msgspec"), sep="\n")
    print_table(("records", "CPU", "MB per CPU s", "peak", "compared"), rows)


if __name__ == "__main__":
    main()
