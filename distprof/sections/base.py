"""What every analyzer's result has in common."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from distprof.rules.base import Evidence

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Record", "Result", "records_to_pandas"]

_MAIN_TABLES = ("classes", "kernels", "ranks", "clocks")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a result: plain numbers and names, written to ``report.json`` as it is.

    Times are int ns, sizes int bytes, ratios 0 to 1. None means not known; it is never 0.
    """


class Result(Record, Evidence, frozen=True, kw_only=True):
    """The answer of one analyzer.

    Args:
        unavailable: What could not be measured and why, one sentence each.
    """

    unavailable: tuple[str, ...] = ()

    def to_pandas(self, table: str = "") -> pd.DataFrame:
        """One of the result's tables as a frame, a column per field.

        Args:
            table: Field that holds the table, for example ``steps``; by default the main one:
                classes of collectives, kernels, else ranks. A result without tables is one row.

        Raises:
            ValueError: If the result has no such table.
        """
        tables = _tables_of(type(self))
        if not table:
            table = next((name for name in _MAIN_TABLES if name in tables), "")
        if not table:
            return records_to_pandas([self], type(self))
        if table not in tables:
            raise ValueError(f"no table {table!r}: choose from {', '.join(tables)}")
        return records_to_pandas(getattr(self, table), tables[table])


def records_to_pandas(records: Sequence[Record], kind: type[Record]) -> pd.DataFrame:
    """Records as a frame, a column per field, typed even when there are none.

    Integers that may be None become ``Int64`` with ``NA``, other numbers stay as they are.
    """
    import pandas as pd

    hints = typing.get_type_hints(kind)
    return pd.DataFrame(
        {
            name: pd.Series([getattr(r, name) for r in records], dtype=_pandas_dtype(hints[name]))
            for name in kind.__struct_fields__
        }
    )


def _tables_of(kind: type[Result]) -> dict[str, type[Record]]:
    """Fields of ``kind`` that are tuples of records, with the records' type."""
    tables = {}
    for name, hint in typing.get_type_hints(kind).items():
        arguments = typing.get_args(hint)
        if arguments and isinstance(arguments[0], type) and issubclass(arguments[0], Record):
            tables[name] = arguments[0]
    return tables


def _pandas_dtype(hint: Any) -> str:
    members = set(typing.get_args(hint)) or {hint}
    if members == {int}:
        return "int64"
    if members == {float}:
        return "float64"
    if members == {int, type(None)}:
        return "Int64"
    return "float64" if members == {float, type(None)} else "object"
