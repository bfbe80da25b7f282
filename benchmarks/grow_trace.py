"""Grow a real trace to the size of a long recording, in the same text format.

Events are repeated with shifted times, correlation ids and event ids, so the result looks like a
longer recording of the same job: names repeat, times and ids do not. The numbers of profiler steps
also continue, unless ``--steps kept`` keeps them.

Run::

    python benchmarks/grow_trace.py TARGET.json.gz --megabytes 500 [--source SOURCE.json.gz]
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\](?=\s*(?:,\s*\"|\}\s*\Z))")
_TIME = re.compile(rb'(?<="ts": )(\d+)')
_ID = re.compile(rb'(?<="correlation": )\d+|(?<="External id": )\d+|(?<="id": )\d+')
_STEP = re.compile(rb"(?<=ProfilerStep#)\d+")
_GAP_US = 1_000
_SOURCE = Path(__file__).parents[1] / "tests/golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"


def grow(trace: bytes, megabytes: float, *, number_steps: bool = True) -> Iterator[bytes]:
    """Yield the text of ``trace`` with its events repeated up to a size in 10^6 bytes."""
    start = _EVENTS.search(trace)
    end = _END.search(trace, start.end() if start else 0)
    if start is None or end is None:
        raise SystemExit("no traceEvents in the source")
    events = trace[start.end() : end.start() + 1]
    times = [int(text) for text in _TIME.findall(events) if len(text) > 6]
    micros = max(times) - min(times) + _GAP_US
    ids = 1 + max(int(match[0]) for match in _ID.finditer(events))
    steps = len(set(_STEP.findall(events))) if number_steps else 0
    yield trace[: start.end()]
    written = 0
    copy = 0
    while written < megabytes * 1e6:
        text = _plus(_TIME, copy * micros, events)
        text = _plus(_STEP, copy * steps, _plus(_ID, copy * ids, text))
        yield (b"," if copy else b"") + text
        written += len(text)
        copy += 1
    yield trace[end.start() + 1 :]


def _plus(pattern: re.Pattern[bytes], amount: int, text: bytes) -> bytes:
    """``text`` with ``amount`` added to every number that the pattern matches."""
    return pattern.sub(lambda match: b"%d" % (int(match[0]) + amount), text) if amount else text


def write_grown(source: Path, target: Path, megabytes: float, *, number_steps: bool) -> None:
    """Write a grown, gzipped copy of ``source``."""
    with gzip.open(source) as file:
        trace = file.read()
    with gzip.open(target, "wb", compresslevel=6) as out:
        for part in grow(trace, megabytes, number_steps=number_steps):
            out.write(part)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--source", type=Path, default=_SOURCE)
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--steps", choices=("grown", "kept"), default="grown")
    asked = parser.parse_args()
    write_grown(asked.source, asked.target, asked.megabytes, number_steps=asked.steps == "grown")
    print(f"{asked.target}: {asked.target.stat().st_size / 1e6:.1f} MB gzipped")


if __name__ == "__main__":
    main()
