"""Finds out from the step logs of a run directory whether, and since when, a job has stopped.

Dumps and stacks are snapshots. A snapshot taken before its rank's last step is no evidence of a
hang. One taken long after the last step of all ranks shows that the job has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import StepRecord
from distprof.ingest.files import Folder
from distprof.units import NS_PER_S

MAX_TAIL_BYTES = 1 << 16

MIN_STOP_NS = 30 * NS_PER_S
"""A checkpoint or an evaluation between two steps may take this long."""

MIN_STOP_STEPS = 20
"""The same limit in steps of usual length."""

LATE_WRITE_NS = 30 * NS_PER_S
"""A log is written within seconds of its last step. A file with a later time is a copy."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank's step log."""

    step: int  # Number of the last step.
    ended_ns: int  # Its end, ns since the epoch.
    usual_ns: int  # Median length of the last steps.
    # Whether the modification times of the rank's files are its own, not a copy's.
    has_own_time: bool = True


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A job that no longer completes steps."""

    step: int  # The last step that any rank completed.
    for_ns: int  # Time from its end to the newest evidence.
    usual_ns: int  # Usual length of a step.


def last_step(folder: Folder) -> LastStep | None:
    """The last step in a rank's log; None if no log can be read."""
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
    """The record on a line; None for a header or a truncated line."""
    try:
        record = msgspec.json.decode(line, type=StepRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return record if record.end_ns >= record.start_ns else None


def modified_ns(folder: Folder, name: str) -> int | None:
    """Modification time of a local file; None for other files."""
    from pathlib import Path

    if not folder.is_local:
        return None
    try:
        return Path(folder.path, name).stat().st_mtime_ns
    except OSError:
        return None


def is_stale(taken_ns: int | None, last: LastStep | None) -> bool:
    """Whether a rank completed a step after its snapshot was taken."""
    return taken_ns is not None and last is not None and taken_ns < last.ended_ns


def find_stop(
    steps: Mapping[int, LastStep], taken_ns: Mapping[int, int], ended_ns: Iterable[int]
) -> Stop | None:
    """Find a stop: evidence that is much newer than the last step of any rank.

    Returns:
        None if the steps have not stopped, or none is known.
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
