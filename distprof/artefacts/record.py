"""The base class of all rows in results of analyzers and parts of a report, and groups of rows."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    import pandas as pd

_S = TypeVar("_S", bound=msgspec.Struct)
_K = TypeVar("_K")
_V = TypeVar("_V")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a result: plain numbers and names, written to ``report.json`` unchanged.

    Times are int ns, sizes int bytes, ratios 0 to 1. None means unknown, never 0.
    """


_DTYPES = {
    frozenset({int}): "int64",
    frozenset({float}): "float64",
    frozenset({int, type(None)}): "Int64",
    frozenset({float, type(None)}): "float64",
}
"""Types of a field to pandas' type of its column; others are objects."""


def shared_fields(kind: type[msgspec.Struct], source: msgspec.Struct) -> dict[str, Any]:
    """The fields of ``source`` that a struct of this type also has, by name."""
    names = set(kind.__struct_fields__)
    return {name: getattr(source, name) for name in source.__struct_fields__ if name in names}


def made_from(source: msgspec.Struct, kind: type[_S], /, **others: Any) -> _S:
    """A struct of this type with the fields that ``source`` also has, but for ``others``."""
    return kind(**shared_fields(kind, source) | others)


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """The values of each key, in the order of the pairs."""
    found: dict[_K, list[_V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def records_to_pandas(records: Sequence[Record], kind: type[Record]) -> pd.DataFrame:
    """Records as a data frame with a column per field, typed even if there are no records.

    Integers that may be None become ``Int64`` with ``NA``; other numbers keep their type.
    """
    import pandas as pd

    hints = typing.get_type_hints(kind)
    columns = {}
    for name in kind.__struct_fields__:
        dtype = _DTYPES.get(frozenset(typing.get_args(hints[name]) or (hints[name],)), "object")
        columns[name] = pd.Series([getattr(record, name) for record in records], dtype=dtype)
    return pd.DataFrame(columns)


class TroubledRank(Record, frozen=True, kw_only=True):
    """A rank with a problem."""

    # ``dead``, ``unresponsive``, ``error``, ``status`` (its status differs from that of the other
    # ranks), or ``behind`` (it has launched fewer operations than the others).
    kind: str
    rank: int | None  # Global rank, None if unknown.
    place: str  # Readable location: process, GPU and node.
    communicator: str  # Hash of the communicator; empty for a process of the job.
    size: int | None  # Ranks of the communicator, None if unknown.
    text: str  # Error, status, or the number of operations launched.


class Gap(Record, frozen=True, kw_only=True):
    """Missing or damaged evidence, and the consequences."""

    what: str  # Short stable identifier, for example ``missing-ranks`` or ``truncated``.
    message: str  # One sentence for the user.
    ranks: tuple[int, ...] = ()  # Ranks concerned; empty if the gap concerns the whole run.
    num_files: int = 0  # Files skipped because they belong to another job or recording.
    fact: str = ""  # Few words for the report's evidence line, if numbers or causes may be wrong.
    hides_cause: bool = False  # Whether the causes of lateness of these ranks cannot be known.
