"""Time and memory of cross-rank work: matching, clock alignment, waits.

    python -m benchmarks.cross_rank                         # 64 ranks x 4,000 collectives
    python -m benchmarks.cross_rank --ranks 1024 --collectives 10000
    python -m benchmarks.cross_rank --without-seq

The recording is generated with numpy (the simulator of the tests is too slow for millions of rows):
one third of the collectives span the whole job, the rest groups of eight and their orthogonal
groups. Nodes have eight ranks, with clocks up to 10 ms and 20 ppm apart, and windows start up to
ten collectives apart. Times are CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from distprof.join.alignment import align_clocks
from distprof.join.matching import match_collectives
from distprof.join.topology import build_topology
from distprof.join.waits import last_start_on_own_clock
from distprof.join.windows import find_window
from distprof.run.run import Device, Quality, Rank
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS, RankTables
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Coded, Table
from distprof.terms import CollectiveKind, MeshAxis, Origin, StepSource

EPOCH_NS = 1_716_423_322_000_000_000
NODE = 8
PERIOD = 3
STEP_LENGTH = 60  # collectives
GAP_NS = 1_000_000
JITTER_NS = 5_000


@dataclass(frozen=True)
class NoTables:
    """Stands in for tables that cross-rank work does not read."""

    path: ClassVar[str] = ""

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Empty tables."""
        del every_host_row
        empty = {t.name: Table.empty(t) for t in (ACTIVITY, HOST, COLLECTIVES, STEPS)}
        return RankTables(**empty, has_host=False)


def make_ranks(num_ranks: int, num_collectives: int, *, with_seq: bool, seed: int) -> list[Rank]:
    rng = np.random.default_rng(seed)
    nodes = -(-num_ranks // NODE)
    offset = rng.integers(-10_000_000, 10_000_000, nodes)
    drift = rng.uniform(-20e-6, 20e-6, nodes)
    end = np.cumsum(rng.integers(GAP_NS // 2, GAP_NS * 3 // 2, num_collectives))
    return [
        _rank(rank, num_ranks, end, (int(offset[rank // NODE]), float(drift[rank // NODE])),
              with_seq, rng)
        for rank in range(num_ranks)
    ]  # fmt: skip


def _groups(rank: int, num_ranks: int) -> tuple[ProcessGroup, ...]:
    node = rank // NODE * NODE
    members = (
        tuple(range(num_ranks)),
        tuple(range(node, min(node + NODE, num_ranks))),
        tuple(range(rank % NODE, num_ranks, NODE)),
    )
    axes = (MeshAxis.WORLD, MeshAxis.TP, MeshAxis.DP)
    return tuple(
        ProcessGroup(
            name=str(i), description=f"mesh_{axis}", ranks=m, size=len(m), backend="nccl", axis=axis
        )
        for i, (axis, m) in enumerate(zip(axes, members, strict=True))
    )


def _fold(ranks: tuple[int, ...]) -> str:
    whole = ranks == tuple(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}-{ranks[-1]}" if whole and len(ranks) > 1 else ",".join(map(str, ranks))


def _rank(
    rank: int,
    num_ranks: int,
    end: np.ndarray,
    clock: tuple[int, float],
    with_seq: bool,
    rng: np.random.Generator,
) -> Rank:
    skip, count = int(rng.integers(0, 11)), len(end)
    true_end = end + rng.integers(-JITTER_NS, JITTER_NS, count)
    true_start = end - 200_000 - rng.integers(0, 300_000, count)
    own = [EPOCH_NS + t + clock[0] + np.rint(clock[1] * t).astype(np.int64)
           for t in (true_start, true_end)]  # fmt: skip
    start_ns, end_ns = (t[skip:].astype(np.int64) for t in own)
    n = count - skip
    which = (np.arange(count) % PERIOD)[skip:].astype(np.int32)
    groups = _groups(rank, num_ranks)
    columns: dict[str, Any] = {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "is_timed": np.ones(n, np.bool_),
        "enqueue_ns": start_ns - 50_000,
        "kind": np.full(n, CollectiveKind.ALL_REDUCE, np.int8),
        "kind_origin": np.full(n, Origin.MEASURED, np.int8),
        "group": Coded(which, tuple(g.name for g in groups)),
        "group_desc": Coded(which, tuple(g.description for g in groups)),
        "group_ranks": Coded(which, tuple(_fold(g.ranks) for g in groups)),
        "group_size": np.array([g.size for g in groups], np.int32)[which],
        "group_origin": np.full(n, Origin.MEASURED, np.int8),
        "seq": (np.arange(count) // PERIOD)[skip:] if with_seq else np.full(n, ABSENT),
        "dtype": Coded(np.zeros(n, np.int32), ("BFloat16",)),
        "bytes": ((np.arange(count) % STEP_LENGTH + 1) * 65536)[skip:].astype(np.int64),
        "bytes_origin": np.full(n, Origin.MEASURED, np.int8),
        "peer": np.full(n, ABSENT, np.int32),
        "in_splits": Coded(np.zeros(n, np.int32), ("",)),
        "out_splits": Coded(np.zeros(n, np.int32), ("",)),
        "stream": np.full(n, 20, np.int64),
        "correlation": np.arange(n, dtype=np.int64),
        "name": Coded(np.zeros(n, np.int32), ("ncclDevKernel_AllReduce",)),
    }
    window = {
        "step": np.zeros(1, np.int64),
        "start_ns": start_ns[:1],
        "end_ns": end_ns[-1:],
        "complete": np.ones(1, np.bool_),
    }
    return Rank(
        rank=rank,
        path="",
        rank_origin="trace",
        world_size=num_ranks,
        host=f"node{rank // NODE}",
        backend="nccl",
        device=Device(name="made up", count=NODE),
        groups=groups,
        versions={},
        capture_start_ns=int(start_ns[0]),
        capture_end_ns=int(end_ns[-1]),
        has_epoch=True,
        step_source=StepSource.CAPTURE,
        step_note="",
        steps=Table(STEPS, window),
        collectives=Table(COLLECTIVES, columns).compact(),  # as kept by ingest
        quality=Quality(),
        tables=NoTables(),
    )


def measure(ranks: list[Rank]) -> dict[str, Any]:
    """CPU seconds of each stage."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = work()
        seconds[name] = round(time.process_time() - begin, 3)
        return result

    topology = timed("topology", lambda: build_topology(ranks))
    matches = timed("match", lambda: match_collectives(ranks, topology.groups, topology.nodes))
    clock = timed("align", lambda: align_clocks(ranks, topology.nodes, matches))
    timed("window", lambda: find_window(ranks, matches, clock))
    timed("waits", lambda: last_start_on_own_clock(matches, clock, ranks))
    return {
        "rows": sum(len(rank.collectives) for rank in ranks),
        "instances": matches.count,
        "matched_ratio": matches.matched_ratio,
        "max_residual_ns": int(clock.residual_ns.max()),
        "violations": clock.num_violations,
        "cpu_seconds": seconds,
        "total_cpu_seconds": round(sum(seconds.values()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=4000)
    parser.add_argument("--without-seq", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ranks = make_ranks(
        options.ranks, options.collectives, with_seq=not options.without_seq, seed=options.seed
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = measure(ranks)
    result["input_peak_bytes"] = peak
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
