"""The Flight Recorder's dump of one rank: which collectives it asked for, in which group.

A trace of gloo names neither groups nor sequence numbers; the recorder, which is on by default,
does. The format is :mod:`distprof.ingest.flight.recorder`'s business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.errors import InputError
from distprof.ingest.flight.recorder import MAX_BYTES, parse_flight
from distprof.ingest.job.files import Folder
from distprof.run.flight import FLIGHT
from distprof.schema import Coded, Int64Array, Table

__all__ = ["FlightEntries", "read_flight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntries:
    """Collectives that one rank asked for, in order of time; messages are left out.

    Args:
        time_ns: int64, when it was asked for, ns since the epoch on the rank's own clock.
        kind: int8, the CollectiveKind as executed: gloo runs a reduce-scatter as an all-reduce.
        seq: int64, sequence number in its group, ABSENT where not told.
        elements: int64, elements of the input, ABSENT where not told.
        group: Name of its process group.
        description: Description of its process group.
        digest: Of the file, so that what is concluded from it can be cached.
        notes: What was damaged, one sentence each.
    """

    time_ns: Int64Array
    kind: NDArray[np.int8]
    seq: Int64Array
    elements: Int64Array
    group: Coded
    description: Coded
    digest: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.time_ns)


def read_flight(path: str) -> FlightEntries:
    """Read the dump of a rank for its collectives.

    Args:
        path: Local path or URL.

    Returns:
        Its collectives; none, with a note, where the file cannot be used.
    """
    folder, _, name = path.rpartition("/")
    try:
        data = Folder(folder or ".").read(name, MAX_BYTES)
    except OSError as error:
        return _collectives(Table.empty(FLIGHT), "", (f"{name} is not read: {error.strerror}.",))
    try:
        dump = parse_flight(data, rank=0, source=name)
    except InputError:
        digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        return _collectives(Table.empty(FLIGHT), digest, (f"{name} is damaged and not used.",))
    return _collectives(dump.entries, dump.digest, dump.notes)


def _collectives(entries: Table, digest: str, notes: tuple[str, ...]) -> FlightEntries:
    """Those entries that are collectives and were stamped, in order of time."""
    rows = np.flatnonzero(~entries["is_p2p"] & (entries["created_ns"] > 0))
    rows = rows[np.argsort(entries["created_ns"][rows], kind="stable")]
    return FlightEntries(
        time_ns=entries["created_ns"][rows],
        kind=entries["kind"][rows],
        seq=entries["seq"][rows],
        elements=entries["in_elements"][rows],
        group=entries.coded("group").take(rows),
        description=entries.coded("description").take(rows),
        digest=digest,
        notes=notes,
    )
