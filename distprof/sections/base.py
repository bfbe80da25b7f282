"""What every analyzer's result has in common."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from distprof.artefacts.record import Record, records_to_pandas
from distprof.rules.base import Evidence

if TYPE_CHECKING:
    import pandas as pd

_FIGURES = 4  # Number of figures that represent a result without tables

_MAIN_TABLES = ("classes", "kernels", "ranks", "clocks")


def subject_of(kind: type) -> str:
    """The folder of ``distprof.sections`` in which a result is declared."""
    return kind.__module__.split(".")[2]


class Result(Record, Evidence, frozen=True, kw_only=True):
    """The result of one analyzer."""

    needs_traces: ClassVar[bool] = False
    """Whether only traces show it. For a run of another tool's log, that is the reason given."""

    unavailable: tuple[str, ...] = ()  # What could not be measured and why, one sentence each.

    def __repr__(self) -> str:
        """One line instead of thousands of rows: sizes of the tables, else the first figures."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        tables = [
            f"{len(value)} {name}"
            for name, value in values.items()
            if isinstance(value, tuple) and value and name != "unavailable"
        ]
        figures = [
            f"{name}={value!r}"
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        shown = ", ".join(tables or figures[:_FIGURES]) or "nothing measured"
        return f"<{type(self).__name__}: {shown}>"

    def to_pandas(self, table: str = "") -> pd.DataFrame:
        """One of the result's tables as a frame, a column per field.

        Args:
            table: Field that holds the table, for example ``steps``; by default the main one
                (classes of collectives, kernels, ranks or clocks). A result without one is one row.

        Raises:
            ValueError: If the result does not have the table.
        """
        tables = {}
        for name, hint in typing.get_type_hints(type(self)).items():
            arguments = typing.get_args(hint)
            if arguments and isinstance(arguments[0], type) and issubclass(arguments[0], Record):
                tables[name] = arguments[0]
        if not table:
            table = next((name for name in _MAIN_TABLES if name in tables), "")
        if not table:
            return records_to_pandas([self], type(self))
        if table not in tables:
            raise ValueError(f"no table {table!r}: choose from {', '.join(tables)}")
        return records_to_pandas(getattr(self, table), tables[table])


VerdictText: TypeAlias = tuple[str, tuple[str, ...]] | None
"""A verdict's line and the numbers behind it; None if the report is on something else."""


class Verdict(Record, frozen=True, kw_only=True):
    """The first lines of a report."""

    # The first finding, or what dominates the step: subject, one number and cause, in at most 80
    # characters.
    headline: str = ""
    detail: str = ""  # The evidence for it, one or two sentences; may be empty.
    why: tuple[str, ...] = ()  # Further numbers behind it, a few sentences.
    part: str = ""  # Key of the part of the step that dominates; empty if nothing was measured.
