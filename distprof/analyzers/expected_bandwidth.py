"""What bus bandwidth should each class of collectives reach, by a fabric profile?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distprof.analyzers.collectives import CollectiveClass, CollectivesResult
from distprof.artefacts.fabric_file import FabricFile
from distprof.costs.fabric import expected_busbw
from distprof.terms import CollectiveKind
from distprof.units import format_bytes

__all__ = ["with_expectations"]

_FEW = 3


def with_expectations(
    result: CollectivesResult, profile: FabricFile, *, is_cpu: bool
) -> CollectivesResult:
    """The classes with what the profile expects of each; None stays where it does not reach.

    Args:
        result: The class table.
        profile: Of the machines that the run was on, as the user says.
        is_cpu: Whether the run's ranks were CPUs: a profile of devices says nothing about them.

    Returns:
        The table; ``unavailable`` says for which classes with a bandwidth nothing is expected.
    """
    if (profile.device == "cpu") != is_cpu:
        measured, ran = ("CPU ranks", "devices") if not is_cpu else ("devices", "CPU ranks")
        why = f"the fabric profile was measured on {measured} and the run was on {ran}: not used"
        return msgspec.structs.replace(result, unavailable=(*result.unavailable, why))
    classes = tuple(_expecting(record, profile) for record in result.classes)
    missed = [
        record
        for record in classes
        if record.busbw_bytes_per_s is not None and record.expected_busbw_bytes_per_s is None
    ]
    return msgspec.structs.replace(
        result,
        classes=classes,
        unavailable=(*result.unavailable, *([_missed(missed)] if missed else [])),
    )


def _expecting(record: CollectiveClass, profile: FabricFile) -> CollectiveClass:
    if record.group_size is None or record.bytes is None or record.num_nodes is None:
        return record
    expected = expected_busbw(
        profile,
        CollectiveKind[record.kind.upper()],
        group_size=record.group_size,
        num_nodes=record.num_nodes,
        num_bytes=record.bytes,
    )
    return msgspec.structs.replace(record, expected_busbw_bytes_per_s=expected)


def _missed(records: Sequence[CollectiveClass]) -> str:
    names = [
        f"{record.kind} of {format_bytes(record.bytes)} over {record.group_size} ranks"
        for record in records[:_FEW]
    ]
    more = f" and {len(records) - _FEW} more" if len(records) > _FEW else ""
    return f"the fabric profile does not reach {', '.join(names)}{more}"
