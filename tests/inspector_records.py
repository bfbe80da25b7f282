"""Folders of records as NCCL Inspector writes them, generated: what is in them is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

START_US = 1_740_327_858_000_000
MB = 1 << 20
BUS_FACTOR = {"AllReduce": lambda n: 2 * (n - 1) / n, "AllGather": lambda n: n - 1}


class Job:
    """Ranks that make the same collectives.

    Args:
        ranks: World size.
        per_node: Ranks of a node.
        steps: Steps; each has an all-reduce of the world and an all-gather in each node.
        step_us: Time from one step to the next.
        gb_per_s: Bus bandwidth by the number of the step.
        late_us: How late a rank comes, by the number of the step and the rank.
        form: Version of the format.
        seed: Of the noise, 1 % of each time.
    """

    def __init__(
        self,
        *,
        ranks: int = 4,
        per_node: int = 2,
        steps: int = 200,
        step_us: int = 1_000_000,
        gb_per_s: Callable[[int], float] = lambda step: 100.0,
        late_us: Callable[[int, int], float] = lambda step, rank: 0.0,
        form: str = "v4.0",
        seed: int = 0,
    ) -> None:
        self.ranks, self.per_node, self.steps, self.step_us = ranks, per_node, steps, step_us
        self.gb_per_s, self.late_us, self.form, self.seed = gb_per_s, late_us, form, seed

    def write(self, folder: Path) -> Path:
        """One file per rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.ranks):
            text = "".join(f"{line}\n" for line in self.lines(rank))
            (folder / f"{self.host(rank)}-pid{self.pid(rank)}.log").write_text(text)
        return folder

    def host(self, rank: int) -> str:
        return f"node-{rank // self.per_node + 1}"

    def pid(self, rank: int) -> int:
        return 4_000 + rank

    def lines(self, rank: int) -> Iterator[str]:
        """The records of one rank."""
        for step in range(self.steps):
            node = [r for r in range(self.ranks) if r // self.per_node == rank // self.per_node]
            yield from self._records(rank, step, "AllGather", 4 * MB, node)
            yield from self._records(rank, step, "AllReduce", 64 * MB, list(range(self.ranks)))

    def _records(self, rank: int, step: int, coll: str, size: int, group: list[int]):
        n = len(group)
        moved = BUS_FACTOR[coll](n) * size
        noise = random.Random(f"{self.seed} {step} {coll} {group[0]}").uniform(0.99, 1.01)
        base_us = moved / self.gb_per_s(step) / 1e3 * noise
        late = [self.late_us(step, r) if coll == "AllReduce" else 0.0 for r in group]
        took = base_us + max(late) - late[group.index(rank)]
        header = {
            "id": f"0x7f8c{group[0]:04x}{n:04x}",
            "rank": group.index(rank),
            "n_ranks": n,
            "nnodes": len({r // self.per_node for r in group}),
        }
        metadata = {
            "inspector_output_format_version": self.form,
            "git_rev": "generated",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": START_US + step * self.step_us + rank,
            "hostname": self.host(rank),
            "pid": self.pid(rank),
        }
        done = {
            "coll": coll,
            "coll_sn": step + 1,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": round(took),
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(size / took / 1e3, 6),
            "coll_busbw_gbs": round(moved / took / 1e3, 6),
        }
        if self.form == "v4.3":
            stats = {"coll_records": 1, "coll_dropped_since_last_dump": int(step == 0)}
            yield _text({"header": header, "metadata": metadata, "dump_stats": stats})
            yield _text({"coll_perf": done})
        else:
            yield _text({"header": header, "metadata": metadata, "coll_perf": done})


def _text(said: object) -> str:
    return json.dumps(said, separators=(",", ":"))
