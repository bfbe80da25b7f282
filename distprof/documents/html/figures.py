"""Declaration of a verb's figures in its ``figures.py``, and their lookup by the page.

A verb draws its result with functions of that result, declared in ``figures.py`` next to the verb's
``show.py``. There is no other list: the folder of the result's struct gives the module, and the
parameter type of a function gives the result that it draws.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar, get_type_hints

import msgspec

from distprof.documents.html.blocks import Part
from distprof.sections.shows import Declared, declared_in

T = TypeVar("T", bound=msgspec.Struct)

_ROLE = "figure"


def figure(*, place: int) -> Callable[[Callable[[T], Part | None]], Declared[[T], Part | None]]:
    """Declare a figure: a function from a verb's result to a part of its page, or to None.

    Args:
        place: Position among the figures of the result, lowest first.
    """
    return lambda make: Declared(_ROLE, place, make)


def figures_of(result: msgspec.Struct) -> tuple[Part, ...]:
    """The parts of a page that show a result as figures, in reading order."""
    made = (each(result) for each in _declared(type(result)))
    return tuple(part for part in made if part is not None)


@cache
def _declared(kind: Any) -> Sequence[Declared[..., Any]]:
    """Figures of one kind of result, by place."""
    name = f"{kind.__module__.rpartition('.')[0]}.figures"
    if not find_spec(name):
        return ()
    found = declared_in(importlib.import_module(name))
    own = [each for each in found if each.role == _ROLE and _drawn_by(each) is kind]
    return sorted(own, key=lambda each: each.place)


def _drawn_by(declared: Declared[..., Any]) -> object:
    """The type of result that a figure draws."""
    hints = get_type_hints(declared.make)
    return next(kind for name, kind in hints.items() if name != "return")
