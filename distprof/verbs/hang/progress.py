"""What the step logs of a run directory say about a hang: since when no step has ended.

Dumps and stacks are snapshots. A snapshot older than the last step of its rank shows nothing of a
hang, and one taken long after the last step of all ranks shows that the job has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import StepRecord
from distprof.ingest.files import Folder
from distprof.units import NS_PER_S

__all__ = ["LastStep", "Stop", "find_stop", "is_stale", "last_step", "modified_ns"]

MAX_TAIL_BYTES = 1 << 16

MIN_STOP_NS = 30 * NS_PER_S
"""A checkpoint or an evaluation may take this long between two steps."""

MIN_STOP_STEPS = 20
"""The same in steps of usual length."""

LATE_WRITE_NS = 30 * NS_PER_S
"""A log is written within seconds of its last step; a later time of the file is that of a copy."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank's step log.

    Args:
        step: Number of the last step.
        ended_ns: Its end, ns since the epoch.
        usual_ns: Median length of the last steps.
        has_own_time: Whether the times of the rank's files are those at which it wrote them.
    """

    step: int
    ended_ns: int
    usual_ns: int
    has_own_time: bool = True


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A job in which no step ends any more.

    Args:
        step: The last step that any rank ended.
        for_ns: Time from its end to the newest evidence.
        usual_ns: Usual length of a step.
    """

    step: int
    for_ns: int
    usual_ns: int


def last_step(folder: Folder) -> LastStep | None:
    """The last step of a rank's log; None without a log that can be read."""
    ended = sorted(_tail(folder), key=lambda record: record.end_ns)
    if not ended:
        return None
    lengths = sorted(record.end_ns - record.start_ns for record in ended)
    written = modified_ns(folder, STEPS_FILE)
    return LastStep(
        step=ended[-1].step,
        ended_ns=ended[-1].end_ns,
        usual_ns=lengths[len(lengths) // 2],
        has_own_time=written is not None and written - ended[-1].end_ns < LATE_WRITE_NS,
    )


def _tail(folder: Folder) -> list[StepRecord]:
    try:
        size = folder.size(STEPS_FILE) or 0
        with folder.open(STEPS_FILE) as stream:
            stream.seek(max(0, size - MAX_TAIL_BYTES))
            lines = stream.read(MAX_TAIL_BYTES).splitlines()
    except OSError:
        return []
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> StepRecord | None:
    """A record; None of a header, or of a line that is cut."""
    try:
        record = msgspec.json.decode(line, type=StepRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return record if record.end_ns >= record.start_ns else None


def modified_ns(folder: Folder, name: str) -> int | None:
    """When a local file was written; None of others."""
    from pathlib import Path

    if not folder.is_local:
        return None
    try:
        return Path(folder.path, name).stat().st_mtime_ns
    except OSError:
        return None


def is_stale(taken_ns: int | None, last: LastStep | None) -> bool:
    """Whether a rank ended a step after a snapshot of it was taken."""
    return taken_ns is not None and last is not None and taken_ns < last.ended_ns


def find_stop(
    steps: Mapping[int, LastStep], taken_ns: Mapping[int, int], ended_ns: Iterable[int]
) -> Stop | None:
    """Whether the newest evidence is so much newer than any step that the job has stopped.

    Args:
        steps: By rank, the end of its step log.
        taken_ns: By rank, when its newest snapshot was taken.
        ended_ns: When a launcher saw ranks end.
    """
    if not steps:
        return None
    own = [taken for rank, taken in taken_ns.items() if rank in steps and steps[rank].has_own_time]
    newest = max([*own, *ended_ns], default=0)
    last = max(steps.values(), key=lambda step: step.ended_ns)
    idle = newest - last.ended_ns
    if idle < max(MIN_STOP_NS, MIN_STOP_STEPS * last.usual_ns):
        return None
    return Stop(step=last.step, for_ns=idle, usual_ns=last.usual_ns)
