"""What the ``show.py`` of a subject declares, and how a report finds it.

A subject shows itself by functions of a report, each declared where it stands: a table
(:func:`table`), the verdict where nothing else was measured (:func:`verdict`), what was read then
(:func:`headline`), a sentence on why the verdict is what it is (:func:`why`). Nothing else lists
them: a report's own fields say which subjects there are, and a subject in which nothing was found
is not imported.
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

__all__ = [
    "Declared",
    "Told",
    "declared",
    "declared_in",
    "headline",
    "section_names",
    "sections_with_tables",
    "table",
    "verdict",
    "why",
]

P = ParamSpec("P")
T = TypeVar("T")

Told: TypeAlias = "tuple[str, tuple[str, ...]] | None"
"""A verdict's line and the numbers behind it; None where the report is on something else."""


class Declared(msgspec.Struct, Generic[P, T], frozen=True):
    """A function of a report that its subject declares, called as the function is.

    Args:
        role: ``table``, ``verdict``, ``headline`` or ``why``.
        place: Where it comes among all of its role: lower ones first.
        make: The function.
        is_brief: Whether the short report shows it too.
    """

    role: str
    place: int
    make: Callable[P, T]
    is_brief: bool = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function makes."""
        return self.make(*args, **kwargs)

    @property
    def section(self) -> str:
        """The subject that declares it, for example ``stragglers``."""
        return self.make.__module__.split(".")[-2]


def table(
    *, place: int
) -> Callable[[Callable[P, TableView | None]], Declared[P, TableView | None]]:
    """Declare a table: from a report and ``show_all`` to the table, None without anything in it."""
    return lambda make: Declared("table", place, make)


def verdict(*, place: int) -> Callable[[Callable[P, Told]], Declared[P, Told]]:
    """Declare the verdict of a report where no trace shows what steps consist of."""
    return lambda make: Declared("verdict", place, make)


def headline(*, place: int) -> Callable[[Callable[P, str]], Declared[P, str]]:
    """Declare what was read, on one line, of a report on this subject alone; else empty."""
    return lambda make: Declared("headline", place, make)


def why(*, place: int, is_brief: bool = False) -> Callable[[Callable[P, str]], Declared[P, str]]:
    """Declare a sentence under the verdict; empty where there is nothing to say."""
    return lambda make: Declared("why", place, make, is_brief)


def declared(report: Report, role: str) -> list[Declared[..., Any]]:
    """What the subjects of a report declare in one role, in the order of reading."""
    found = [each for module in _modules(report) for each in declared_in(module)]
    return sorted((each for each in found if each.role == role), key=lambda each: each.place)


def declared_in(module: ModuleType) -> Iterator[Declared[..., Any]]:
    """What one ``show.py`` declares, imported names aside."""
    for value in vars(module).values():
        if isinstance(value, Declared) and value.make.__module__ == module.__name__:
            yield value


def _modules(report: Report) -> list[ModuleType]:
    """The ``show.py`` of each subject in which something was found."""
    subjects = dict.fromkeys(
        type(result).__module__.rpartition(".")[0]
        for field in msgspec.structs.fields(report)
        if isinstance(result := getattr(report, field.name), Result)
        and (field.required or _found_anything(result))
    )
    return [module for subject in subjects if (module := _show_of(subject)) is not None]


@cache
def _show_of(subject: str) -> ModuleType | None:
    """The ``show.py`` of a subject, where it has one."""
    name = f"{subject}.show"
    return importlib.import_module(name) if find_spec(name) else None


def _found_anything(result: Result) -> bool:
    return any(getattr(result, name) for name in result.__struct_fields__ if name != "unavailable")


def section_names() -> tuple[str, ...]:
    """Subjects that may show something, in alphabetical order; none of them is imported."""
    folders = (each.name for each in pkgutil.iter_modules(sections.__path__) if each.ispkg)
    return tuple(name for name in folders if find_spec(f"{sections.__name__}.{name}.show"))


def sections_with_tables() -> dict[str, str]:
    """Name to subject, in one line, of all that have tables; imports every one of them."""
    found = {}
    for name in section_names():
        module = importlib.import_module(f"{sections.__name__}.{name}.show")
        if any(each.role == "table" for each in declared_in(module)):
            found[name] = (module.__doc__ or "").strip().split("\n")[0]
    return found
