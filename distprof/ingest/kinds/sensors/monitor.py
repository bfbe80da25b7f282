"""SuperBench's monitor: a JSON object per sample, with keys such as ``gpu_usage:0``.

Source: microsoft/superbenchmark, ``superbench/monitor/record.py``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from distprof.ingest.kinds.sensors.collect import Collector, Identity
from distprof.ingest.kinds.sensors.values import time_of
from distprof.run.device_log import DeviceLinks

__all__ = ["MARK", "NvlinkStatus", "take_monitor_line"]

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


# ``nvidia-smi nvlink --status``: speed of each link of each GPU, or that it is inactive ----------

_GPU = re.compile(r"GPU (\d{1,4}): (.{1,200}) \(UUID: (\S{1,80})\)\s*")

_LINK = re.compile(r"\s*Link (\d{1,3}): (?:<?(inactive)>?|(\d{1,5}(?:\.\d{1,6})?) GB/s)\s*", re.I)

MAX_LINKS = 256


class NvlinkStatus:
    """Lines of the status; GPUs without a link line (no NVLink, MIG) are left out.

    Args:
        collector: Where links go.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._gpu: tuple[int, str, str] | None = None
        self._speeds: dict[int, float | None] = {}

    def take(self, line: str) -> bool:
        """Read a line; False for one of something else."""
        gpu = _GPU.fullmatch(line)
        if gpu is not None:
            self.close()
            self._gpu = (int(gpu[1]), gpu[2], gpu[3])
            return True
        link = _LINK.fullmatch(line)
        if link is None or self._gpu is None:
            return False
        if int(link[1]) < MAX_LINKS:
            self._speeds[int(link[1])] = float(link[3]) if link[3] else None
        return True

    def close(self) -> None:
        """End the GPU that is open."""
        if self._gpu is not None and self._speeds and len(self._collector.links) < 100_000:
            index, name, uuid = self._gpu
            self._collector.links.append(
                DeviceLinks(
                    file=self._collector.file,
                    host="",
                    index=index,
                    uuid=uuid,
                    name=name,
                    gb_per_s=tuple(self._speeds[link] for link in sorted(self._speeds)),
                )
            )
        self._gpu, self._speeds = None, {}
