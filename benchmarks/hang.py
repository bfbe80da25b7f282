"""``distprof hang`` on the dumps of 1,000 ranks with full rings: wall time, CPU and memory.

Dumps are pickles in torch's format: 2,000 collectives each in a world group and groups of eight,
with one rank 40 operations behind. The answer is also checked.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Cost, machine, measure, print_table, versions

START_NS = 1_758_610_000_000_000_000
UNFINISHED = 60
BEHIND = 40
PER_GROUP = 8


class Speller:
    """Pickles plain data like torch's pickler, which memoises text but not containers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def spell(self, value: Any) -> bytes:
        """The instructions that make ``value``."""
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            return _integer(value)
        if isinstance(value, tuple):
            return b"".join(map(self.spell, value)) + b"\x86"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.spell, value)) + b"e"
        items = (self.spell(key) + self.spell(item) for key, item in value.items())
        return b"}(" + b"".join(items) + b"u"

    def _text(self, text: str) -> bytes:
        index = self.known.get(text)
        if index is not None:
            return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        index = self.known[text] = len(self.known)
        raw = text.encode()
        put = b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)
        return b"X" + struct.pack("<I", len(raw)) + raw + put


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def dump_of(rank: int, num_ranks: int, num_entries: int, *, is_behind: bool) -> dict[str, Any]:
    """One rank's dump, in which every fourth collective spans the world."""
    own = str(1 + rank // PER_GROUP)
    first = rank // PER_GROUP * PER_GROUP
    members = list(range(first, min(first + PER_GROUP, num_ranks)))
    counts = {"0": 40_000, own: 40_000}
    entries = []
    for number in range(num_entries - (BEHIND if is_behind else 0)):
        group = own if number % 4 else "0"
        counts[group] += 1
        is_done = number < num_entries - UNFINISHED
        entries.append(_entry(number, group, counts[group], rank, is_done=is_done))
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(num_ranks)))},
        own: {"name": own, "desc": "TENSOR_PARALLEL", "ranks": str(members)},
    }
    return {"version": "2.9", "nccl_version": "2.27.3", "pg_config": config, "entries": entries}


def _entry(number: int, group: str, seq: int, rank: int, *, is_done: bool) -> dict[str, Any]:
    created = START_NS + number * 1_000_000 + rank
    return {
        "record_id": 90_000 + number,
        "pg_id": int(group != "0"),
        "process_group": (group, "TENSOR_PARALLEL" if int(group) else "default_pg"),
        "thread_name": "python3",
        "thread_id": "23456244340032",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:_all_gather_base" if int(group) else "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": [[4096, 5120 + number % 7]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 5120]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 500_000 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def write_job(folder: Path, num_ranks: int, num_entries: int) -> int:
    """Write the dumps; returns the bytes."""
    total = 0
    for rank in range(num_ranks):
        content = dump_of(rank, num_ranks, num_entries, is_behind=rank == num_ranks - 3)
        data = b"\x80\x02" + Speller().spell(content) + b"."
        total += len(data)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return total


def hang(folder: Path, out: Path) -> Cost:
    arguments = ["hang", str(folder), "-o", str(out), "--force", "-q", "--fail-on", "never"]
    return measure([sys.executable, "-m", "distprof", *arguments], tree=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--entries", type=int, default=2_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place, "dumps"), Path(place, "hang.json")
        folder.mkdir()
        num_bytes = write_job(folder, arguments.ranks, arguments.entries)
        cost = hang(folder, out)
        found = json.loads(out.read_text())
    assert found["culprits"] == [arguments.ranks - 3], found["verdict"]
    print(machine(), versions("numpy", "msgspec"), sep="\n")
    print_table(
        ("ranks", "entries", "dumps", "wall", "CPU", "memory"),
        [
            (
                f"{arguments.ranks:,}",
                f"{arguments.entries:,}",
                f"{num_bytes / 1e6:.0f} MB",
                f"{cost.wall_s:.1f} s",
                f"{cost.cpu_s:.1f} s",
                f"{cost.tree_bytes / 1e6:.0f} MB",
            )
        ],
    )


if __name__ == "__main__":
    main()
