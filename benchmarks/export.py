"""``distprof export perfetto`` compared with reading the same traces: CPU ratio, memory, file size.

Each rank is the same real trace (two A100, three steps, 10 MB of JSON) under another rank number.
Nothing is cached. Contestants alternate: reading (``open_run``: traces to tables and Parquet),
``analyze``, which an export includes, and exports with everything and with collectives only. The
last line compares the cost of one packet with objects of Google's protobuf package, if it is
installed, and with distprof's own arrays.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from many_ranks import make_job
from measuring import Cost, cpu_ratio, machine, measure, medians, print_table, rounds, versions

MOST_RATIO = 2.0
MOST_BYTES = 400e6
_PACKETS = 200_000

READ = """
import sys, distprof
from distprof.kernel import import_numpy
import_numpy()
distprof.open_run(sys.argv[1], cache_dir=sys.argv[2])
"""


def read(folder: Path) -> Cost:
    with tempfile.TemporaryDirectory() as cache:
        return measure([sys.executable, "-c", READ, str(folder), cache], tree=True)


def analyze(folder: Path) -> Cost:
    with tempfile.TemporaryDirectory() as cache:
        command = ["analyze", str(folder), "--cache-dir", cache, "--format", "json"]
        return measure([sys.executable, "-m", "distprof", *command], tree=True)


def export(folder: Path, *more: str) -> Cost:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "job.pftrace"
        command = ["export", "perfetto", str(folder), "--cache-dir", scratch, "-o", str(file)]
        return measure([sys.executable, "-m", "distprof", *command, *more], tree=True)


def packets_by_arrays() -> float:
    """Microseconds per packet of distprof's encoder."""
    from distprof.intervals import Intervals
    from distprof.schema import Coded
    from distprof.verbs.export.packets import PacketFile, Slices

    start = 1_795_219_600_024_939_158 + 100 * np.arange(_PACKETS // 2)
    codes = np.zeros(len(start), np.int32)
    slices = Slices(
        spans=Intervals(start, start + 50),
        name=Coded(codes, ("gemm",)),
        category=Coded(codes, ("computation",)),
    )
    sequence = PacketFile(io.BytesIO(), None).sequence()
    track = sequence.track("stream 7", None)
    began = time.process_time()
    sequence.slices(track, slices)
    return (time.process_time() - began) / _PACKETS * 1e6


def packets_by_objects() -> float | None:
    """The same with objects of the protobuf package; None if it is not installed."""
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
    except ImportError:
        return None
    began = time.process_time()
    for number in range(_PACKETS):
        trace = Trace()
        packet = trace.packet.add()
        packet.timestamp = 1_795_219_600_024_939_158 + 50 * number
        packet.trusted_packet_sequence_id, packet.sequence_flags = 2, 2
        event = packet.track_event
        event.type, event.track_uuid, event.name_iid = 1 + number % 2, 1 << 21, 128
        event.category_iids.append(128)
        trace.SerializeToString()
    return (time.process_time() - began) / _PACKETS * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="8 and 64 ranks, three rounds")
    options = parser.parse_args()
    counts = [8, 64] if options.full else options.ranks
    num_rounds = 3 if options.full else options.rounds

    print(machine())
    print(versions("distprof", "numpy", "pyarrow", "msgspec", "protobuf", "perfetto"))
    rows, worst, largest = [], 0.0, 0
    for num_ranks in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            num_bytes = make_job(folder, num_ranks)
            costs = rounds(
                {
                    "read": partial(read, folder),
                    "analyze": partial(analyze, folder),
                    "export": partial(export, folder),
                    "export --only collectives": partial(export, folder, "--only", "collectives"),
                },
                num_rounds,
            )
        for tool, measured in costs.items():
            cost, ratio = medians(measured), cpu_ratio(measured, costs["read"])
            rows.append(
                (
                    str(num_ranks),
                    f"{num_bytes / 1e6:.0f}",
                    tool,
                    f"{cost.cpu_s:.2f}",
                    f"{cost.wall_s:.2f}",
                    f"{cost.peak_bytes / 1e6:.0f}",
                    f"{cost.tree_bytes / 1e6:.0f}",
                    f"{ratio:.2f}",
                )
            )
        worst = max(worst, cpu_ratio(costs["export"], costs["read"]))
        largest = max(largest, medians(costs["export"]).tree_bytes)
    header = ("ranks", "MB JSON", "tool", "CPU s", "wall s", "peak MB", "tree MB", "x reading")
    print_table(header, rows)
    objects = packets_by_objects()
    print(f"\nper packet: {packets_by_arrays():.2f} µs by arrays", end="")
    print("" if objects is None else f", {objects:.2f} µs by objects of the protobuf package")
    return int(worst > MOST_RATIO or largest > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
