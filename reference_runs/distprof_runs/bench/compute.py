"""What one device reaches alone: ``python -m distprof_runs.bench.compute RESULT DEVICE``.

Products are of square matrices, at several sizes; the fastest size counts, by its median round.
Rounds last long enough for clocks to fall to what the device sustains.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
from distprof_probes.environment import tool_version, versions

from distprof.artefacts.fabric_file import ComputeRate, FabricFile
from distprof.units import NS_PER_S

_SIZES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024, 2048)}
_MEMORY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
_ROUND_S = 0.3
_ROUNDS = 5
_WARM_UP_S = 1.0
_TOO_SLOW_S = 1.0
"""A size whose single product takes longer is the last one."""

_TF32_SINCE, _FP8_SINCE = (8, 0), (8, 9)
"""Compute capability of the first GPUs whose tensor cores multiply these types."""

Work = Callable[[], object]


def measure(device: torch.device) -> FabricFile:
    """Measure products of every type that the device multiplies, then its memory."""
    notes: list[str] = []
    rates = tuple(rate for kind in _kinds(device) if (rate := _fastest(kind, device, notes)))
    return FabricFile(
        origin="distprof bench",
        distprof_version=tool_version(),
        measured_ns=time.time_ns(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        world_size=1,
        hosts=(socket.gethostname(),),
        versions=versions(),
        curves=(),
        rates=rates,
        memory_bytes_per_s=_memory(device),
        notes=tuple(notes),
    )


def _kinds(device: torch.device) -> Iterator[str]:
    yield from ("bf16", "fp16", "fp32")
    if device.type == "cuda" and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability(device)
        yield from (
            kind
            for kind, since in (("tf32", _TF32_SINCE), ("fp8", _FP8_SINCE))
            if capability >= since
        )


def _fastest(kind: str, device: torch.device, notes: list[str]) -> ComputeRate | None:
    """The fastest size; None, with a note, if the device cannot multiply the type."""
    found = []
    for size in _SIZES[device.type]:
        try:
            seconds = _seconds(_product(kind, size, device), device)
        except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError included
            why = str(error).splitlines()[0][:120]
            notes.append(f"No product of {size:,} rows in {kind}: {why}.")
            break
        found.append(ComputeRate(dtype=kind, flops=2 * size**3 / seconds, size=size))
        if seconds > _TOO_SLOW_S:
            break
    return max(found, key=lambda rate: rate.flops, default=None)


def _product(kind: str, size: int, device: torch.device) -> Work:
    """One product of two square matrices."""
    if kind == "fp8":
        return _scaled_product(size, device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    first, second, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    return lambda: torch.mm(first, second, out=out)


def _scaled_product(size: int, device: torch.device) -> Work:
    """The same in fp8: the second matrix is stored by column, as cuBLAS needs it."""
    first, second = (
        torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2)
    )
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(
        first, second.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )


def _memory(device: torch.device) -> float:
    """Bytes per second read and written, in the faster of a copy and a sum."""
    count = _MEMORY_BYTES[device.type] // 4
    first, second, out = (torch.ones(count, device=device) for _ in range(3))
    copy = 2 * 4 * count / _seconds(lambda: out.copy_(first), device)
    added = 3 * 4 * count / _seconds(lambda: torch.add(first, second, out=out), device)
    return max(copy, added)


def _seconds(work: Work, device: torch.device) -> float:
    """Time of one call: the median round, after a warm-up."""
    once = _round(work, 1, device)  # loads libraries
    once = _round(work, 1, device)
    if once < _TOO_SLOW_S:
        _round(work, round(_WARM_UP_S / once) or 1, device)
    count = max(round(_ROUND_S / once), 1)
    return statistics.median(_round(work, count, device) for _ in range(_ROUNDS))


def _round(work: Work, count: int, device: torch.device) -> float:
    """Mean seconds of one call; on a GPU between two of its events."""
    if device.type == "cpu":
        before = time.perf_counter_ns()
        for _ in range(count):
            work()
        return max(time.perf_counter_ns() - before, 1) / NS_PER_S / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(count):
        work()
    last.record()
    torch.cuda.synchronize(device)
    return float(max(first.elapsed_time(last), 1e-6)) / 1_000 / count


def main(arguments: list[str]) -> int:
    """Measure the device, ``cuda``, ``cpu`` or ``auto``, and write the profile."""
    result, wanted = arguments
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    profile = measure(torch.device(wanted, 0) if wanted == "cuda" else torch.device("cpu"))
    Path(result).write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
