"""Speed of the reader of job output: MB of text per second of CPU time, for several kinds of logs.

::

    python -m benchmarks.job_output
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

from distprof.ingest.output.read import Reader

__all__ = ["main"]

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
BLOCK_BYTES = 1 << 20
NUM_BLOCKS = 100
STEP = (
    b"2024-01-01 12:00:00,123 - root - INFO - step: 10  loss:  7.9  memory: 12.3GiB(15%)  "
    b"tps: 7,411  mfu: 34.5%\n"
)
NCCL = b"node1:137956:137956 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"


def _texts() -> Iterator[tuple[str, bytes]]:
    yield "steps", STEP
    yield "NCCL's lines", NCCL
    logs = (GOLDEN / "training-logs").glob("*.gz")
    yield "recorded training logs", b"".join(gzip.decompress(log.read_bytes()) for log in logs)
    samples = b"".join(path.read_bytes() for path in (GOLDEN / "logs").glob("*.log"))
    yield "steps, and every sample once per MB", STEP * 9_000 + samples


def _block(text: bytes) -> bytes:
    repeated = text * (BLOCK_BYTES // len(text) + 1)
    return repeated[: repeated.rfind(b"\n", 0, BLOCK_BYTES) + 1]


def main() -> None:
    """Print one line per kind of log."""
    for name, text in _texts():
        block, reader = _block(text), Reader()
        started = time.process_time()
        reader.take_blocks((block for _ in range(NUM_BLOCKS)), "job.out", None)
        seconds = time.process_time() - started
        speed = NUM_BLOCKS * len(block) / seconds / 1e6
        print(f"{name}: {speed:,.0f} MB/s, {len(reader.events):,} events")


if __name__ == "__main__":
    main()
