"""The figures of a verb's result: functions from the result to a part of its page, or to None.

They are in ``figures.py`` next to the struct of the result, whose ``FIGURES`` lists them in reading
order for each kind of result.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import msgspec

from distprof.documents.html.blocks import Part


def figures_of(result: msgspec.Struct) -> tuple[Part, ...]:
    """The parts of a page that show a result as figures, in reading order."""
    kind = type(result)
    name = f"{kind.__module__.rpartition('.')[0]}.figures"
    if not find_spec(name):
        return ()
    listed = importlib.import_module(name).FIGURES.get(kind, ())
    return tuple(part for draw in listed if (part := draw(result)) is not None)
