"""Logs of NCCL that are cut, mixed, coloured or made to harm."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from tests.broken_inputs.intact import EITHER, Build, Cases

CASES = Cases()
LINE = b"node-1:1:2 [0] NCCL INFO "
EDGE = LINE + b"Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
EVIL = b"\x1b]0;owned\x07\x1b[2J[bold]\xe2\x80\xae\0"


def log(data: bytes, name: str = "job.log") -> Build:
    """A log with these bytes."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return build


def random_log(seed: int) -> bytes:
    """Pieces of lines in any order."""
    chance = random.Random(seed)
    pieces = (LINE, EDGE, EVIL, b"NCCL WARN ", b"Trees [0] 1/-1->0->9", b"\n", b"\r", b"\xff" * 9)
    return b"".join(chance.choices(pieces, k=2_000))


CASES.add("NCCL log without an end of line", EITHER, log(EDGE * 9 + LINE + b"x" * 300_000))
CASES.add("NCCL log cut in a gzip", EITHER, log(gzip.compress(EDGE * 9_000)[:-9], "a.log.gz"))
CASES.add("NCCL log with control characters", EITHER, log(EDGE + LINE + EVIL + b"\n"))
CASES.add(
    "setting of NCCL with control characters",
    EITHER,
    log(LINE + b"NCCL_ALGO set by environment to " + EVIL),
)
CASES.add("warning of NCCL with control characters", EITHER, log(LINE[:15] + b"NCCL WARN " + EVIL))
CASES.add(
    "communicator of NCCL with a billion ranks",
    EITHER,
    log(EDGE + LINE + b"comm 0x1 rank 5 nranks 999999999 cudaDev 0 busId 1 - Init COMPLETE\n"),
)
CASES.add("host of NCCL with a long name", EITHER, log(b"h" * 70_000 + EDGE))
for seed in range(5):
    CASES.add(f"pieces of lines of NCCL {seed}", EITHER, log(EDGE + random_log(seed)))
