"""Lists all documents: the report, and those that the modules of verbs declare."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from distprof import verbs
from distprof.documents.document import Document
from distprof.documents.saved import REPORT


def all_documents() -> tuple[Document[Any], ...]:
    """Every document, by schema id."""
    found: dict[str, Document[Any]] = {REPORT.schema: REPORT}
    for name in _modules():
        for value in vars(import_module(name)).values():
            if isinstance(value, Document):
                found[value.schema] = value
    return tuple(found[schema] for schema in sorted(found))


def _modules() -> Iterator[str]:
    """Modules that may declare documents; those of rules, one folder deeper, declare none."""
    for verb in pkgutil.iter_modules(verbs.__path__, "distprof.verbs."):
        if verb.ispkg:
            folder = import_module(verb.name).__path__
            yield from (each.name for each in pkgutil.iter_modules(folder, f"{verb.name}."))
