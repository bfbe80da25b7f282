"""Declarations in the ``show.py`` of a subject, and how a report finds them.

A subject shows its results through functions of a report, declared by decorators: a table
(:func:`table`), the verdict if nothing else was measured (:func:`verdict`), one line on what was
read in that case (:func:`headline`), a sentence on the reasons for the verdict (:func:`why`).
Nothing else lists them: the fields of a report say which subjects there are, and a subject without
results is not imported.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from distprof import sections
from distprof.sections.base import Result
from distprof.sections.table import TableView

if TYPE_CHECKING:
    from distprof.sections.report import Report

P = ParamSpec("P")
T = TypeVar("T")

VerdictText: TypeAlias = "tuple[str, tuple[str, ...]] | None"
"""A verdict's line and the numbers behind it; None if the report is on something else."""


class Declared(msgspec.Struct, Generic[P, T], frozen=True):
    """A function of a report that its subject declares; it can be called like the function."""

    role: str  # ``table``, ``verdict``, ``headline`` or ``why``.
    place: int  # Its place among all with this role, in ascending order.
    make: Callable[P, T]  # The function.
    is_brief: bool = False  # Whether the short report also shows it.

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function."""
        return self.make(*args, **kwargs)

    @property
    def section(self) -> str:
        """The subject that declares it, for example ``stragglers``."""
        return self.make.__module__.split(".")[-2]


def table(
    *, place: int
) -> Callable[[Callable[P, TableView | None]], Declared[P, TableView | None]]:
    """Declare a table: from a report and ``show_all`` to the table, None if it would be empty."""
    return lambda make: Declared("table", place, make)


def verdict(*, place: int) -> Callable[[Callable[P, VerdictText]], Declared[P, VerdictText]]:
    """Declare the verdict of a report without traces that show the parts of steps."""
    return lambda make: Declared("verdict", place, make)


def headline(*, place: int) -> Callable[[Callable[P, str]], Declared[P, str]]:
    """Declare one line on what was read, for a report on this subject alone; else empty."""
    return lambda make: Declared("headline", place, make)


def why(*, place: int, is_brief: bool = False) -> Callable[[Callable[P, str]], Declared[P, str]]:
    """Declare a sentence under the verdict; empty if there is nothing to say."""
    return lambda make: Declared("why", place, make, is_brief)


def declared(report: Report, role: str) -> list[Declared[..., Any]]:
    """Declarations with one role of all subjects of a report, in reading order."""
    found = [each for module in _modules(report) for each in declared_in(module)]
    return sorted((each for each in found if each.role == role), key=lambda each: each.place)


def declared_in(module: ModuleType) -> Iterator[Declared[..., Any]]:
    """Declarations of one ``show.py``, without imported ones."""
    for value in vars(module).values():
        if isinstance(value, Declared) and value.make.__module__ == module.__name__:
            yield value


def _modules(report: Report) -> list[ModuleType]:
    """The ``show.py`` of each subject with results."""
    subjects = dict.fromkeys(
        type(result).__module__.rpartition(".")[0]
        for field in msgspec.structs.fields(report)
        if isinstance(result := getattr(report, field.name), Result)
        and (field.required or _found_anything(result))
    )
    return [module for subject in subjects if (module := _show_of(subject)) is not None]


@cache
def _show_of(subject: str) -> ModuleType | None:
    """The ``show.py`` of a subject, if it has one."""
    name = f"{subject}.show"
    return importlib.import_module(name) if find_spec(name) else None


def _found_anything(result: Result) -> bool:
    return any(getattr(result, name) for name in result.__struct_fields__ if name != "unavailable")


def section_names() -> tuple[str, ...]:
    """Subjects that may show something, in alphabetical order; none of them is imported."""
    folders = (each.name for each in pkgutil.iter_modules(sections.__path__) if each.ispkg)
    return tuple(name for name in folders if find_spec(f"{sections.__name__}.{name}.show"))


def sections_with_tables() -> dict[str, str]:
    """One line on each subject that has tables, by name; imports all subjects."""
    found = {}
    for name in section_names():
        module = importlib.import_module(f"{sections.__name__}.{name}.show")
        if any(each.role == "table" for each in declared_in(module)):
            found[name] = (module.__doc__ or "").strip().split("\n")[0]
    return found
