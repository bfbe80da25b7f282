"""What the ``figures.py`` of a verb declares, and how the page of its result finds it.

A verb draws its result by functions of that result, each declared where it stands, next to the
verb's ``show.py``. Nothing else lists them: the folder of the result's struct says where to look,
and the type of a function's parameter says which result it draws.
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

__all__ = ["figure", "figures_of"]

T = TypeVar("T", bound=msgspec.Struct)

_ROLE = "figure"


def figure(*, place: int) -> Callable[[Callable[[T], Part | None]], Declared[[T], Part | None]]:
    """Declare a figure: from a verb's result to a part of its page, None without anything to see.

    Args:
        place: Where it comes among the figures of the result: lower ones first.
    """
    return lambda make: Declared(_ROLE, place, make)


def figures_of(result: msgspec.Struct) -> tuple[Part, ...]:
    """The parts of a page that show a result as figures, in the order of reading."""
    made = (each(result) for each in _declared(type(result)))
    return tuple(part for part in made if part is not None)


@cache
def _declared(kind: type[msgspec.Struct]) -> Sequence[Declared[..., Any]]:
    """Figures of one kind of result, by place."""
    name = f"{kind.__module__.rpartition('.')[0]}.figures"
    if not find_spec(name):
        return ()
    found = declared_in(importlib.import_module(name))
    own = [each for each in found if each.role == _ROLE and _drawn_by(each) is kind]
    return sorted(own, key=lambda each: each.place)


def _drawn_by(declared: Declared[..., Any]) -> object:
    """The type of result that a figure is a function of."""
    hints = get_type_hints(declared.make)
    return next(kind for name, kind in hints.items() if name != "return")
