"""distprof and HTA on the same grown traces, alternating in the same run.

The contestants (each in a separate process, without a cache, gz input):

- ``distprof-full``: every row to tables and Parquet, then the overlap;
- ``distprof-device``: device rows only, then the overlap;
- ``distprof-analyze``: the whole of ``distprof analyze``;
- ``hta-overlap``: HTA's ``TraceAnalysis(...)`` and its ``get_comm_comp_overlap``.

With ``--steps kept`` the grown trace has the three profiler steps of the real one, which spares HTA
its search of every step for every event. With ``--steps grown`` each repetition adds three more, as
a longer recording would.

Ratios are medians over the rounds of HTA's CPU seconds over the contestant's: of the work alone,
and of the whole process with the interpreter's start and imports.
"""

from __future__ import annotations

import argparse
import gzip
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from grow_trace import grow
from measuring import Cost, cpu_ratio, machine, measure, medians, print_table, rounds, versions

HERE = Path(__file__).resolve().parent
TRACE = HERE.parent / "tests/golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"
STEP = re.compile(rb"ProfilerStep#\d+")
WORK = re.compile(r"work ([0-9.]+) CPU s")
HTA = "hta-overlap"
CONTESTANTS = ("distprof-full", "distprof-device", "distprof-analyze", HTA)


def grown(folder: Path, megabytes: int, *, steps: str) -> Path:
    """A trace of about this size, grown from a real one in the same text format."""
    path = folder / f"grown-{megabytes}-{steps}.json.gz"
    if path.exists():
        return path
    trace = gzip.decompress(TRACE.read_bytes())
    kept = set(STEP.findall(trace))
    with gzip.open(path, "wb", compresslevel=6) as out:
        for piece in grow(trace, megabytes):
            out.write(piece if steps == "grown" else STEP.sub(partial(_rename, kept), piece))
    return path


def _rename(kept: set[bytes], match: re.Match[bytes]) -> bytes:
    return match[0] if match[0] in kept else match[0].replace(b"ProfilerStep", b"Section")


def contest(path: Path, num_rounds: int, hta_python: str) -> dict[str, list[Cost]]:
    contestants: dict[str, Callable[[], Cost]] = {}
    for name in CONTESTANTS:
        python = hta_python if name.startswith("hta") else sys.executable
        if python:
            command = [python, str(HERE / "contestant.py"), name, str(path)]
            contestants[name] = partial(measure, command)
    costs: dict[str, list[Cost]] = rounds(contestants, num_rounds)
    return costs


def row(megabytes: int, name: str, costs: dict[str, list[Cost]]) -> tuple[str, ...]:
    cost = medians(costs[name])
    return (
        str(megabytes),
        name,
        f"{cost.cpu_s:.2f}",
        f"{cost.wall_s:.2f}",
        f"{cost.peak_bytes / 1e6:.0f}",
        f"{work_s(cost):.2f}",
        f"{megabytes / work_s(cost):.0f}",
        f"{work_ratio(costs[HTA], costs[name]):.1f}" if HTA in costs else "",
        f"{cpu_ratio(costs[HTA], costs[name]):.1f}" if HTA in costs else "",
        cost.output.strip().splitlines()[-1],
    )


def work_s(cost: Cost) -> float:
    """CPU seconds of the work alone, as the contestant printed them."""
    return float(WORK.findall(cost.output)[-1])


def work_ratio(slow: list[Cost], fast: list[Cost]) -> float:
    return statistics.median(work_s(a) / work_s(b) for a, b in zip(slow, fast, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="100, 500 and 1,500 MB, three rounds")
    parser.add_argument("--steps", choices=("kept", "grown"), default="kept", help="see above")
    parser.add_argument("--hta-python", default="", help="a Python that has HTA; without, no HTA")
    parser.add_argument("--folder", type=Path, help="where grown traces are kept")
    options = parser.parse_args()
    sizes = [100, 500, 1500] if options.full else options.megabytes

    print(machine())
    print(versions("distprof", "numpy", "pandas", "pyarrow", "msgspec", "isal"))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for megabytes in sizes:
            path = grown(options.folder or Path(scratch), megabytes, steps=options.steps)
            costs = contest(path, 3 if options.full else options.rounds, options.hta_python)
            rows += [row(megabytes, name, costs) for name in costs]
    print_table(
        (
            "MB",
            "contestant",
            "CPU s",
            "wall s",
            "peak MB",
            "work CPU s",
            "MB/work s",
            "x less work",
            "x less CPU",
            "found",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
