"""The plan of a benchmark. Does not import torch."""

from __future__ import annotations

import re

import msgspec

from distprof.errors import UsageError
from distprof.terms import CollectiveKind

PLAN_VARIABLE = "DISTPROF_BENCH"
"""Environment variable with the plan, as JSON, for each rank."""

KINDS = {
    kind.label: kind
    for kind in (
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BROADCAST,
        CollectiveKind.SEND_RECV,
    )
}
_SIZE = re.compile(r"(\d{1,12})\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ELEMENT = 4
_MOST_BYTES = 1 << 40  # more than the memory of a GPU, or of a rank's share of a host
_MAX_DEFAULT = {"cuda": 1 << 30, "cpu": 64 << 20}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how."""

    kinds: tuple[str, ...] = tuple(KINDS)  # Labels of collectives, in order.
    min_bytes: int = 64  # Smallest size.
    max_bytes: int = 0  # Largest size, 0 for the default of the device.
    factor: int = 4  # Ratio of successive sizes.
    rounds: int = 5  # Number of measurements of each size.
    iterations: int = 0  # Operations in each round; 0 for as many as fit into ``round_s``.
    round_s: float = 0.05  # Length of a round in seconds, if ``iterations`` is 0.
    device: str = "auto"  # ``auto``, ``cuda`` or ``cpu``.
    timeout_s: float = 60.0  # How long an operation may wait for a rank.
    result: str = ""  # File that rank 0 writes the profile to.

    def check(self) -> None:
        """Check that the plan can be measured.

        Raises:
            UsageError: With a fix.
        """
        if self.max_bytes and self.max_bytes < self.min_bytes:
            raise UsageError(
                f"--max-bytes {self.max_bytes} is below --min-bytes {self.min_bytes}: swap them"
            )
        if not (self.round_s > 0 and self.timeout_s > 0):
            raise UsageError("--round-s and --timeout-s must be above 0")

    def sizes(self, group_size: int, device: str) -> tuple[int, ...]:
        """Bytes of each size, ascending: whole elements of float32 for each rank."""
        least = _ELEMENT * group_size
        most = self.max_bytes or _MAX_DEFAULT[device]
        sizes, size = [], max(self.min_bytes, 1)
        while size <= most:
            sizes.append(max(size // least, 1) * least)
            size *= self.factor
        return tuple(sorted(set(sizes)))


def parse_size(text: str) -> int:
    """Bytes from the notation of nccl-tests: ``64``, ``1K``, ``32M``, ``2G``, powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"{text!r} is not a size: use bytes, or for example 1K, 32M, 2G")
    size = int(found[1]) * _UNITS[(found[2] or "").lower()]
    if size > _MOST_BYTES:
        raise UsageError(f"{text!r} is above 1 TiB, the largest size that bench measures")
    return size


def parse_kinds(text: str) -> tuple[str, ...]:
    """Labels from a comma-separated list; all if it is empty."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise UsageError(f"--collectives {unknown[0]}: choose from {', '.join(KINDS)}")
    return names or tuple(KINDS)
