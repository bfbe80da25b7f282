"""The classes of collectives that rules can judge, and their names in messages."""

from __future__ import annotations

from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.terms import CollectiveKind, MeshAxis
from distprof.units import format_bytes

_POINT_TO_POINT = frozenset(kind.label for kind in CollectiveKind if kind.is_point_to_point)


def split_classes(collectives: CollectivesResult) -> list[CollectiveClass]:
    """Classes with waiting separated from transfer, without send and recv.

    Waiting in pipeline messages is the bubble, and says nothing about late ranks.
    """
    return [
        record
        for record in collectives.classes
        if record.kind not in _POINT_TO_POINT and record.exposed_wait_ns_per_step is not None
    ]


def only_messages(collectives: CollectivesResult) -> bool:
    """Whether the recording holds only send and recv."""
    return all(record.kind in _POINT_TO_POINT for record in collectives.classes)


def collective_label(record: CollectiveClass) -> str:
    """For example ``all_reduce in dp_shard (26.2 MB)``: the axis, or the group if there is none.

    A group without a description is named by its ranks: ``all_reduce of ranks 0-1 and 2-3``.
    """
    name = record.group if record.axis in (None, MeshAxis.WORLD) else record.axis
    word = "of" if name.startswith("ranks ") else "in"
    group = f" {word} {name}" if name else ""
    size = f" ({format_bytes(record.bytes)})" if record.bytes is not None else ""
    return f"{record.kind}{group}{size}"
