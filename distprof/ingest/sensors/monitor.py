"""SuperBench's monitor: a JSON object per sample, with keys such as ``gpu_usage:0``.

Source: microsoft/superbenchmark, ``superbench/monitor/record.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from distprof.ingest.sensors.collect import Collector, Identity
from distprof.ingest.sensors.values import time_of

__all__ = ["MARK", "take_monitor_line"]

MARK = '"gpu_'
MAX_GPUS = 1_024

_COLUMNS: dict[str, tuple[str, float]] = {
    "gpu_usage": ("gpu_utilization_ratio", 0.01),
    "gpu_temperature": ("temperature_c", 1),
    "gpu_power": ("power_w", 1),
    "gpu_mem_used": ("memory_used_bytes", 1),
    "gpu_uncorrected_ecc": ("ecc_uncorrected", 1),
}


def take_monitor_line(line: str, collector: Collector) -> None:
    """Read one sample of all GPUs of a host."""
    try:
        said: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        said = None
    when = time_of(said["time"]) if isinstance(said, dict) and _is_text(said, "time") else None
    if when is None:
        collector.left_out["samples that cannot be read are left out"] += 1
        return
    rows: dict[int, dict[str, float | None]] = {}
    for key, value in said.items():
        name, _, index = key.partition(":")
        if name in _COLUMNS and index.isdecimal() and len(index) < 5 and int(index) < MAX_GPUS:
            column, scale = _COLUMNS[name]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            rows.setdefault(int(index), {})[column] = value * scale if is_number else None
    for gpu, values in rows.items():
        collector.sample(Identity(index=gpu), when, values)


def _is_text(said: dict[str, Any], key: str) -> bool:
    return isinstance(said.get(key), str)
