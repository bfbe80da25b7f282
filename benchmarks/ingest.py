"""Speed of converting one trace to tables, compared with limits measured in the same run.

Contestants, in separate processes, alternating, from the same ``.json.gz``:

- ``gunzip``: decompression alone; no reader of this file can be faster.
- ``skip-all``: the same plus a JSON decoder that validates every byte and keeps nothing, the limit
  of any reader without its own compiled code.
- ``kernel``: chunks in memory to columns by the compiled kernel, without reading or unpacking.
- ``full``: all rows to tables and Parquet.
- ``device``: device rows only, and the union and overlap of communication and computation.
- ``reload``: the tables that an analysis loads from the Parquet files.
- ``analyze``: the whole command, start-up and report included.

``full``, ``device`` and ``analyze`` also run as ``…-python``, with the kernel switched off.

Run::

    python benchmarks/grow_trace.py /tmp/grown.json.gz --megabytes 500
    python benchmarks/ingest.py /tmp/grown.json.gz --rounds 3
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import MB, Cost, machine, measure, print_table, rounds, versions

PYTHON = "-python"
WITH_KERNEL = ("full", "device", "analyze")
CONTESTANTS = (
    *("gunzip", "skip-all", "kernel", "reload"),
    *(name + how for name in WITH_KERNEL for how in ("", PYTHON)),
)
COMMUNICATION = "nccl"
TABLES = "rank.tables"
BLOCK = 1 << 18  # as requested by the reader: larger ones are fresh memory each time


def gunzip(trace: Path, _: Path) -> Callable[[], int]:
    from distprof.ingest.kineto.source import ByteSource

    def work() -> int:
        size = 0
        with ByteSource(trace, str(trace)) as source:
            while block := source.read(BLOCK):
                size += len(block)
        return size

    return work


def skip_all(trace: Path, _: Path) -> Callable[[], int]:
    import msgspec

    from distprof.ingest.kineto.framing import Framer
    from distprof.ingest.kineto.source import ByteSource

    class Nothing(msgspec.Struct, gc=False):
        pass

    decode = msgspec.json.Decoder(list[Nothing]).decode
    seen = 0

    def take(data: bytearray, stop: int, _: int) -> bool:
        nonlocal seen
        try:
            seen += len(decode(memoryview(data)[:stop]))
        except msgspec.DecodeError:
            return False
        return True

    def work() -> int:
        with ByteSource(trace, str(trace)) as source:
            Framer(source, str(trace)).run(take, lambda *_: None)
        return seen

    return work


def kernel(trace: Path, _: Path) -> Callable[[], int]:
    from distprof.ingest.kineto.framing import Framer
    from distprof.ingest.kineto.native import NativeReader
    from distprof.ingest.kineto.parsed import SymbolTable
    from distprof.ingest.kineto.source import ByteSource

    chunks: list[bytes] = []

    def take(data: bytearray, stop: int, _: int) -> bool:
        chunks.append(bytes(data[:stop]))
        return True

    with ByteSource(trace, str(trace)) as source:
        Framer(source, str(trace)).run(take, lambda *_: None)
    reader = NativeReader(SymbolTable())

    def work() -> int:
        how = {"exact": False, "device_only": False}
        found = [reader.find(chunk, len(chunk), **how) for chunk in chunks]
        return sum(reader.with_codes(chunk).num_events for chunk in found if chunk is not None)

    return work


def full(trace: Path, folder: Path) -> Callable[[], int]:
    import pyarrow.parquet  # noqa: F401  # imports are not what is measured

    from distprof.ingest.kineto.reader import read_trace
    from distprof.ingest.tables_file import Part, TablesWriter

    def work() -> int:
        with (folder / TABLES).open("w+b") as file:
            writer = TablesWriter(file, "key")
            with writer.host_rows() as rows:
                parsed = read_trace(trace, host_sink=rows)
            writer.write_table(Part.ACTIVITY, parsed.activity)
            writer.write_table(Part.CALLS, parsed.host)
            writer.finish()
        return parsed.quality.num_events

    return work


def device(trace: Path, _: Path) -> Callable[[], int]:
    import re

    from distprof.ingest.kineto.reader import read_trace
    from distprof.intervals import intersect, total, union
    from distprof.run.tables import intervals_of

    def work() -> int:
        activity = read_trace(trace, rows="device").activity
        names = activity.coded("name")
        is_comm = names.where([re.search(COMMUNICATION, name) is not None for name in names.values])
        comm = union(intervals_of(activity.take(is_comm)))
        rest = union(intervals_of(activity.take(~is_comm & (activity["kind"] == 0))))
        return total(intersect(comm, rest))

    return work


def reload(_: Path, folder: Path) -> Callable[[], int]:
    import pyarrow.parquet  # noqa: F401

    from distprof.ingest.tables_file import Part, open_tables

    def work() -> int:
        with open_tables(folder / TABLES) as file:
            return len(file.table(Part.ACTIVITY)) + len(file.table(Part.CALLS))

    return work


def analyze(trace: Path, _: Path) -> Callable[[], int]:
    import io
    from contextlib import redirect_stdout

    def work() -> int:
        from distprof.cli import main

        with redirect_stdout(io.StringIO()):
            return main(["analyze", str(trace), "--no-cache"])

    return work


WORK: dict[str, Callable[[Path, Path], Callable[[], int]]] = {
    "gunzip": gunzip,
    "skip-all": skip_all,
    "kernel": kernel,
    "full": full,
    "device": device,
    "reload": reload,
    "analyze": analyze,
}


def run_one(name: str, trace: Path, folder: Path) -> None:
    os.environ["DISTPROF_KERNEL"] = "off" if name.endswith(PYTHON) else "on"
    if not name.startswith("analyze"):  # the command line does this automatically
        from distprof.kernel import import_numpy

        import_numpy()  # threads for linear algebra would spin at the beginning of reading
    work = WORK[name.removesuffix(PYTHON)](trace, folder)
    start = 0.0 if name.startswith("analyze") else time.process_time()  # with Python's own start
    answer = work()
    cpu_s = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{cpu_s} {peak} {answer}")


def figures(costs: list[Cost]) -> tuple[float, float]:
    """CPU seconds of the work (median of the rounds) and peak memory in MB."""
    lines = [cost.output.split() for cost in costs]
    return statistics.median(float(line[0]) for line in lines), max(
        int(line[1]) for line in lines
    ) / MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("CONTESTANT", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        run_one(asked.one[0], asked.trace, Path(asked.one[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(asked.trace), "--one"]
        measure([*command, "full", folder])  # the input of reload
        contestants = {name: partial(measure, [*command, name, folder]) for name in CONTESTANTS}
        costs = rounds(contestants, asked.rounds)
    size = int(costs["gunzip"][0].output.split()[2]) / MB
    limit = figures(costs["skip-all"])[0]
    ratios = {
        name: statistics.median(
            float(cost.output.split()[0]) / float(base.output.split()[0])
            for cost, base in zip(costs[name], costs["skip-all"], strict=True)
        )
        for name in CONTESTANTS
    }
    print(f"{asked.trace.name}, {size:.0f} MB of JSON; {machine()}; load {os.getloadavg()[0]:.0f}")
    print(versions("distprof", "msgspec", "numpy", "isal", "pyarrow"))
    print_table(
        ("what", "CPU s", "MB/s", "of skip-all", "peak MB"),
        [
            (name, f"{cpu:.2f}", f"{size / cpu:.0f}", f"{ratios[name]:.2f}", f"{peak:.0f}")
            for name in CONTESTANTS
            for cpu, peak in [figures(costs[name])]
        ],
    )
    print(f"skip-all: {size / limit:.0f} MB/s is the limit without compiled code")
    for name in WITH_KERNEL:
        times = [
            float(slow.output.split()[0]) / float(fast.output.split()[0])
            for slow, fast in zip(costs[name + PYTHON], costs[name], strict=True)
        ]
        print(f"{name}: × {statistics.median(times):.2f} by the kernel")


if __name__ == "__main__":
    main()
