"""Operation tables that are damaged, absurd or of something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.broken_inputs.intact import EITHER, NOISE, REFUSED, TOLD, Build, Cases, content
from tests.operation_logs import BY_HAND, log_of, write_table

CASES = Cases()
COUNT = len(BY_HAND)


def table(**changed: Any) -> Build:
    """A sound table but for some columns."""

    def build(folder: Path) -> Path:
        return write_table(folder / "trace-T.parquet", log_of(BY_HAND, steps=range(4)), **changed)

    return build


def damaged(change: Callable[[bytes], bytes]) -> Build:
    """A sound file, its bytes changed."""

    def build(folder: Path) -> Path:
        path = table()(folder)
        path.write_bytes(change(path.read_bytes()))
        return path

    return build


def with_sizes(text: str) -> Build:
    """A sound table beside a file of sizes."""

    def build(folder: Path) -> Path:
        path = table()(folder)
        (folder / "meta-T.yaml").write_text(text)
        return path

    return build


def random_places(seed: int) -> Build:
    """Every place, number and time drawn at random; no operation twice."""
    rng = np.random.default_rng(seed)
    count = 4 * COUNT
    return table(
        rank=np.arange(count),
        dp_rank=np.arange(count) // 9,
        stage=np.arange(count) % 9,
        step=rng.integers(-5, 5, count),
        start_ts=rng.normal(0, 100, count),
        duration=rng.normal(1, 2, count),
        seq_id=np.arange(count),
        mc=rng.integers(-1, 5, count),
        mb_id=rng.integers(-1, 3, count),
    )


CASES.add("a Parquet file of noise", REFUSED, content(NOISE, "t.parquet"))
CASES.add("an empty Parquet file", REFUSED, content(b"", "t.parquet"))
CASES.add("an operation table cut in half", REFUSED, damaged(lambda b: b[: len(b) // 2]))
CASES.add("an operation table without its end", REFUSED, damaged(lambda b: b[:-4]))
CASES.add(
    "an operation table with a zeroed middle",
    EITHER,
    damaged(lambda b: b[:200] + bytes(900) + b[1100:]),
)
for name in ("step", "optype", "duration"):
    CASES.add(f"an operation table without {name}", REFUSED, table(**{name: None}))
CASES.add("operations at no time", REFUSED, table(start_ts=np.full(4 * COUNT, np.nan)))
CASES.add("operations of infinite length", REFUSED, table(duration=np.full(4 * COUNT, np.inf)))
CASES.add("operations of no length", EITHER, table(duration=np.zeros(4 * COUNT)))
CASES.add("operations of negative length", TOLD, table(duration=np.full(4 * COUNT, -1.0)))
CASES.add("operations in nanoseconds", REFUSED, table(start_ts=np.arange(4 * COUNT) * 1e9))
CASES.add("two billion stages", REFUSED, table(stage=np.arange(4 * COUNT) + 2**31))
CASES.add("kinds with control characters", EITHER, table(optype=["\x1b[2J\u202e"] * (4 * COUNT)))
CASES.add("one kind for all operations", REFUSED, table(optype=["gc"] * (4 * COUNT)))
CASES.add(
    "sizes that contradict each other",
    REFUSED,
    with_sizes("dp_size: 2\npp_size: 2\ntp_size: 1\ndsp_size: 1\nworld_size: 7\n"),
)
CASES.add("sizes that are code", REFUSED, with_sizes("!!python/object/apply:os.system [true]\n"))
CASES.add("sizes of a far larger job", TOLD, with_sizes("dp_size: 999999999\n"))
for seed in range(5):
    CASES.add(f"operations in random places {seed}", EITHER, random_places(seed))
