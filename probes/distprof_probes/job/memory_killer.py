"""Whether the kernel's out-of-memory killer struck while the job ran.

A process that it ends looks like any other ended by SIGKILL; the control group's counters show the
difference. Source: Linux, Documentation/admin-guide/cgroup-v2.rst (``memory.events``) and
cgroup-v1/memory.rst (``memory.oom_control``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCounts:
    """Processes that the out-of-memory killer has ended so far; None if no counter is readable."""

    group: int | None = None  # In this process's control group and those below.
    machine: int | None = None  # On the machine as a whole.


def kill_counts() -> KillCounts:
    """Read the counters now."""
    files = (_GROUPS / name for name in _group_files())
    found = (_counter(file) for file in files)
    group = next((count for count in found if count is not None), None)
    return KillCounts(group=group, machine=_counter(Path("/proc/vmstat")))


def who_struck(before: KillCounts, after: KillCounts) -> Literal["", "group", "machine"]:
    """Where the counter rose between the two readings; empty if nowhere or unknown."""
    if _rose(before.group, after.group):
        return "group"
    if before.group is None and _rose(before.machine, after.machine):
        return "machine"
    return ""


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _group_files() -> list[str]:
    """Possible paths of this group's counter, for versions 2 and 1, including containers."""
    names = []
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            names.append(f"{path.strip('/')}/memory.events".strip("/"))
        elif "memory" in controllers.split(","):
            names.append(f"memory/{path.strip('/')}/memory.oom_control")
    return [*names, "memory.events", "memory/memory.oom_control"]


def _counter(file: Path) -> int | None:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
