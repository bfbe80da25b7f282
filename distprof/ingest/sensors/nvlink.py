"""``nvidia-smi nvlink --status``: speed of each link of each GPU, or that it is inactive."""

from __future__ import annotations

import re

from distprof.ingest.sensors.collect import Collector
from distprof.run.device_log import DeviceLinks

__all__ = ["NvlinkStatus"]

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
