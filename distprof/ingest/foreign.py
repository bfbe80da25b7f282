"""Recordings of other tools that people try: named, with what to do instead."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from distprof.bounds import open_plain
from distprof.errors import InputError

__all__ = ["Foreign", "foreign_format", "refuse_foreign"]

_HEAD_BYTES = 4096
_MAX_ENTRIES = 1_000

_OWN = b'"traceEvents"'
"""What the beginning of a trace of torch.profiler may hold, and none of the others."""

_RECORD = "record the job with torch.profiler, or with distprof capture -- COMMAND"


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A format that distprof does not read.

    Args:
        name: What it is.
        endings: Of file names.
        begins: First bytes of a file.
        holds: Bytes near the beginning of a text, all of them.
        fix: What to do instead.
    """

    name: str
    endings: tuple[str, ...] = ()
    begins: bytes = b""
    holds: tuple[bytes, ...] = ()
    fix: str = _RECORD


_KNOWN = (
    Foreign(
        name="a report of Nsight Systems",
        endings=(".nsys-rep", ".qdrep"),
        fix=f"open it in Nsight Systems; for distprof {_RECORD}",
    ),
    Foreign(name="a report of Nsight Compute", endings=(".ncu-rep",)),
    Foreign(
        name="an SQLite database, as Nsight Systems and rocprofv3 export",
        endings=(".sqlite", ".rpd"),
        begins=b"SQLite format 3\0",
    ),
    Foreign(name="a trace of rocprofv3", holds=(b'"rocprofiler-sdk-tool"',)),
    Foreign(
        name="a Perfetto trace",
        endings=(".pftrace", ".perfetto-trace"),
        fix=f"open it in ui.perfetto.dev; for distprof {_RECORD}",
    ),
    Foreign(name="an XPlane profile of JAX, XLA or TensorFlow", endings=(".xplane.pb",)),
    Foreign(
        name="an execution trace (PyTorch or Chakra), which has no times of the GPU",
        endings=(".et",),
        holds=(b'"schema"', b'"nodes"'),
        fix="name the profiler's trace of the same run, which export_chrome_trace writes",
    ),
    Foreign(name="a log of NCCL Inspector", holds=(b'"coll_perf"', b'"coll_sn"')),
    Foreign(
        name="an event file of TensorBoard",
        holds=(b"brain.Event:",),
        fix="name the *.pt.trace.json files that tensorboard_trace_handler wrote",
    ),
    Foreign(
        name="a pickle",
        endings=(".pickle", ".pkl"),
        fix="for dumps of the Flight Recorder, run distprof hang; memory snapshots belong to "
        "docs.pytorch.org/memory_viz",
    ),
)


def foreign_format(name: str, head: bytes = b"") -> Foreign | None:
    """The format of a file that distprof does not read; None if it is none of them.

    Args:
        name: Of the file.
        head: Its first bytes; without them the name decides.
    """
    small = name.lower()
    if _OWN in head:
        return None
    for known in _KNOWN:
        begins = bool(known.begins) and head.startswith(known.begins)
        holds = bool(known.holds) and all(part in head for part in known.holds)
        if begins or holds or (known.endings and small.endswith(known.endings)):
            return known
    return None


def refuse_foreign(path: Path) -> None:
    """Refuse a file of another tool, or a folder that holds such files.

    Raises:
        InputError: If it is one, with what to do instead.
    """
    for file in _files(path):
        found = foreign_format(file.name, _head(file))
        if found is not None:
            raise InputError(
                str(file),
                expected="a trace of torch.profiler (*.json or *.json.gz)",
                found=found.name,
                fix=found.fix,
            )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for folder, _, names in os.walk(path):
        found += [Path(folder, name) for name in sorted(names)]
        if len(found) > _MAX_ENTRIES:
            break
    return found[:_MAX_ENTRIES]


def _head(file: Path) -> bytes:
    try:
        with open_plain(file) as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""
