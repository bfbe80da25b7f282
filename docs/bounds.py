"""Collects the declared input limits of all readers."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import distprof
from distprof.bounds import Bound
from distprof.ingest.kinds import known_sources
from docs.documents import ALL_DOCUMENTS


def all_bounds() -> tuple[Bound, ...]:
    """Every bound by subject: of source kinds, of documents, and the ``BOUND`` constants."""
    declared = [source.bound for source in known_sources()]
    declared += [document.bound for document in ALL_DOCUMENTS]
    declared += _constants()
    return tuple(sorted(dict.fromkeys(declared), key=lambda bound: bound.reads.lower()))


def _constants() -> Iterator[Bound]:
    """``BOUND`` constants of all modules except those of rules, which do not read input."""
    for found in pkgutil.walk_packages(distprof.__path__, "distprof."):
        if ".rules" in found.name or found.name.endswith("__main__"):
            continue
        value = getattr(import_module(found.name), "BOUND", None)
        if isinstance(value, Bound):
            yield value
