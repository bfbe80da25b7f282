"""The communication of four real DLRM ranks (one host, 8 x V100), read without distprof."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from distprof.run.run import Device, Rank
from distprof.terms import CollectiveKind
from tests.simulator.by_hand import collective, rank_by_hand

FOLDER = Path(__file__).parents[1] / "golden" / "kineto" / "dlrm-v100-8gpu"


def dlrm_ranks(shift_ns: Mapping[int, int] | None = None, host: str | None = None) -> list[Rank]:
    """The ranks, the clock of each shifted by so much."""
    return [_rank(number, (shift_ns or {}).get(number, 0), host) for number in range(4)]


def _rank(number: int, shift: int, host: str | None) -> Rank:
    (path,) = FOLDER.glob(f"worker{number}_*")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    rows, steps, launch = [], [], {}
    for event in events:
        if event.get("cat") == "cuda_runtime":
            launch[event["args"]["correlation"]] = event["ts"] * 1000 + shift
    for event in events:
        name, start = event["name"], event.get("ts", 0) * 1000 + shift
        end = start + event.get("dur", 0) * 1000
        if event.get("cat") == "kernel" and name.startswith("nccl"):
            reduce = "AllReduce" in name
            kind = CollectiveKind.ALL_REDUCE if reduce else CollectiveKind.ALL_TO_ALL
            called = launch[event["args"]["correlation"]]
            unknown = {"bytes": -1, "dtype": ""}
            rows.append(collective(start, end, kind=kind, name=name, enqueue_ns=called, **unknown))
        elif name.startswith("ProfilerStep#"):
            steps.append((int(name.removeprefix("ProfilerStep#")), start, end))
    rows.sort(key=lambda row: row["start_ns"])
    return rank_by_hand(
        number,
        rows,
        steps,
        world_size=8,
        host=host,
        device=Device(name="Tesla V100-SXM2-32GB", count=8),
    )
