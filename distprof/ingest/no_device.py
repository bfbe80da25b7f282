"""Whether a trace without device rows comes from a CPU, or lost its accelerator's activity.

Host operators look the same in both. Counting their time as work would invent numbers if kernels
ran elsewhere, so a rank counts as a CPU only if nothing in its file points to another device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from distprof.ingest.kineto.events import DEVICE_KINDS, HOST_WORDS, PYTHON_FRAME, USUAL_CATEGORIES
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.metadata import TraceMetadata
from distprof.schema import Table
from distprof.units import format_duration

_KNOWN = {*USUAL_CATEGORIES, *HOST_WORDS.values(), *DEVICE_KINDS, PYTHON_FRAME, ""}
_CALLS = ("runtime", "driver", "sync")
_ON_CPU = re.compile(r"(gloo|mpi):")
_ON_ACCELERATOR = re.compile(r"(nccl|rccl|xccl|hccl|cncl|mccl|eccl):")
_CPU_BACKENDS = ("gloo", "mpi")
_MOST_NAMED = 4


class UnreadCategory(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a category that distprof does not know."""

    name: str  # The category, as in the file.
    count: int  # Number of its events.
    duration_ns: int  # Sum of their durations.


def unread_categories(host: Table) -> tuple[UnreadCategory, ...]:
    """Categories of events that distprof does not know, longest total duration first."""
    categories = host.coded("category")
    length = host["end_ns"] - host["start_ns"]
    unread = []
    for code, name in enumerate(categories.values):
        rows = categories.codes == code
        if name not in _KNOWN and rows.any():
            total = int(length[rows].sum())
            unread.append(UnreadCategory(name=name, count=int(rows.sum()), duration_ns=total))
    return tuple(sorted(unread, key=lambda item: (-item.duration_ns, item.name)))


def is_known(host: Table) -> bool:
    """Whether any row has a category that torch.profiler writes."""
    return any(name and name in _KNOWN for name in host.coded("category").values)


def missing_device(parsed: ParsedTrace, host: Table, metadata: TraceMetadata) -> str:
    """Why a file without device rows is not a CPU trace, as a sentence; empty if it is one."""
    signs, unread = list(_signs(host)), list(_unread(host))
    on_cpu = _mentions(host, _ON_CPU) or metadata.backend in _CPU_BACKENDS
    if not on_cpu:
        signs += list(_weaker_signs(parsed, metadata))
    signs += unread
    if not signs:
        return ""
    *others, last = signs
    evidence = f"{', '.join(others)} and {last}" if others else last
    return f"No device activity was recorded, although {evidence}. {_fix(parsed, host)}"


def _signs(host: Table) -> Iterator[str]:
    """Evidence on the host that only an accelerator leaves."""
    calls = int(host.coded("category").isin(_CALLS).sum())
    if calls:
        yield f"the trace holds {calls:,} calls of an accelerator's runtime"
    if _mentions(host, _ON_ACCELERATOR):
        yield "collectives ran on an accelerator's library"


def _unread(host: Table) -> Iterator[str]:
    unread = unread_categories(host)
    if unread:
        named = [
            f"{item.name} ({item.count:,} event{'s' if item.count > 1 else ''}, "
            f"{format_duration(item.duration_ns)})"
            for item in unread[:_MOST_NAMED]
        ]
        more = [f"{len(unread) - _MOST_NAMED} more"] if len(unread) > _MOST_NAMED else []
        what = "events of a kind" if len(unread) == 1 else "events of kinds"
        yield f"the trace holds {what} that distprof cannot read: {', '.join([*named, *more])}"


def _weaker_signs(parsed: ParsedTrace, metadata: TraceMetadata) -> Iterator[str]:
    """Evidence that a CPU job may show as well, so CPU collectives outweigh it."""
    if metadata.device.name:
        count = f"{metadata.device.count} × " if metadata.device.count else ""
        yield f"the trace lists {count}{metadata.device.name}"
    if metadata.backend and metadata.backend not in _CPU_BACKENDS:
        yield f"the process group uses {metadata.backend}"
    if parsed.quality.truncated:
        yield "the file ends early"


def _mentions(host: Table, pattern: re.Pattern[str]) -> bool:
    names = host.coded("name")
    used = np.unique(names.codes).tolist()
    return any(pattern.match(names.values[code]) for code in used)


def _fix(parsed: ParsedTrace, host: Table) -> str:
    if parsed.quality.truncated:
        return "The profiler writes it last, so it may be in the missing part of the file."
    if unread_categories(host):
        return "Record with activities that distprof reads: kernel, gpu_memcpy and gpu_memset."
    return "Profile with the accelerator's ProfilerActivity, for example ProfilerActivity.CUDA."
