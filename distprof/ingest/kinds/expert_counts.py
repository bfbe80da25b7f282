"""Tokens per expert, counted by another program: a small JSON file.

Three forms, each with a list of counts per layer, one count per expert::

    {"domains": {"code": [[…], …], "prose": [[…], …]}, "layers": [0, 7], "top_k": 8, "model": "…"}
    {"layers": [[…], …], "top_k": 2}
    [[…], …]

In the first, ``layers`` are the names of the layers, and ``num_experts`` is checked if present.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import beginning, decoded
from distprof.ingest.source import Source
from distprof.run.evidence import ExpertCounts

BOUND = Bound(
    reads="tokens per expert", num_bytes=64_000_000, rows=8_000_000, depth=1_000, beyond="refused"
)
MAX_COUNT = 1 << 53
MAX_PARTS = 1_000
MAX_LAYERS = 10_000
_SNIFFED_BYTES = 1 << 13
_BEGINS_WITH_COUNTS = re.compile(rb"\s*\[\s*\[\s*\d")
_HAS_COUNTS = re.compile(rb'"(?:domains"\s*:\s*\{[^{}\[\]]*\[\s*\[|layers"\s*:\s*\[\s*\[)\s*\d')
_NOT_COUNTS = (b'"traceEvents"', b'"schemaVersion"', b'"schema":"distprof.')
_FORMS = 'counts per expert, a list for each layer: [[…], …], {"layers": […]} or {"domains": {…}}'
_FIX = "write one whole number per expert and layer; docs/concepts/expert-imbalance.md shows how"


def fits_expert_counts(source: str) -> bool:
    """Whether a file begins like counts of tokens per expert."""
    start = beginning(source, _SNIFFED_BYTES, endings=(".json",))
    if any(word in start for word in _NOT_COUNTS):
        return False
    return bool(_BEGINS_WITH_COUNTS.match(start) or _HAS_COUNTS.search(start))


def read_expert_counts(source: str) -> ExpertCounts:
    """Read counts of tokens per expert."""
    document = decoded(source, BOUND, object, _refuse)
    if isinstance(document, list):
        document = {"layers": document}
    if not isinstance(document, dict):
        _refuse(source, f"{_kind(document)} at the top")
    if "domains" in document:
        parts = _domains(source, document["domains"])
        number = len(next(iter(parts.values())))
        names = document.get("layers", list(range(number)))
        if not isinstance(names, list) or not all(type(name) in (int, str) for name in names):
            _refuse(source, f"{_kind(names)} under layers, which names the layers of each domain")
        if len(names) != number or len(set(names)) != number:
            _refuse(source, f"{len(set(names))} different names under layers for {number} layers")
        layers = tuple(map(str, names))
    else:
        parts = {"": _table(source, "layers", document.get("layers"))}
        layers = tuple(str(index) for index in range(len(parts[""])))
    declared, num_experts = document.get("num_experts"), next(iter(parts.values())).shape[1]
    if declared is not None and declared != num_experts:
        _refuse(source, f"{num_experts} counts per layer, but num_experts is {_kind(declared)}")
    top_k = document.get("top_k")
    if top_k is not None and (type(top_k) is not int or not 0 < top_k < MAX_COUNT):
        _refuse(source, f"{_kind(top_k)} under top_k")
    return ExpertCounts(
        tokens=parts,
        layers=layers,
        top_k=top_k,
        model=document["model"] if isinstance(document.get("model"), str) else "",
        notes=("Tokens per expert are counts from a file; nothing was timed.",),
    )


def _domains(source: str, domains: Any) -> dict[str, NDArray[np.int64]]:
    if not isinstance(domains, dict) or not domains:
        _refuse(source, f"{_kind(domains)} under domains")
    if len(domains) > MAX_PARTS:
        _refuse(source, f"{len(domains):,} domains, more than {MAX_PARTS:,}")
    parts = {name: _table(source, f"domains.{name}", rows) for name, rows in domains.items()}
    shapes = {name: "{} layers of {} experts".format(*table.shape) for name, table in parts.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            _refuse(source, f"{shape} in domains.{name}, {shapes[first]} in domains.{first}")
    return parts


def _table(source: str, key: str, rows: Any) -> NDArray[np.int64]:
    if not isinstance(rows, list) or not rows:
        _refuse(source, f"{_kind(rows)} under {key}")
    if len(rows) > MAX_LAYERS:
        _refuse(source, f"{len(rows):,} layers under {key}, more than {MAX_LAYERS:,}")
    for index, row in enumerate(rows):
        where = f"{key}[{index}]"
        if not isinstance(row, list) or not row:
            _refuse(source, f"{_kind(row)} under {where}")
        if len(row) != len(rows[0]):
            _refuse(source, f"{len(row)} counts under {where}, {len(rows[0])} in the first layer")
        for column, count in enumerate(row):
            if type(count) is not int or not 0 <= count < MAX_COUNT:
                _refuse(source, f"{_kind(count)} under {where}[{column}]")
    return np.array(rows, dtype=np.int64)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float | str):
        return f"{str(value)[:40]!r}" if isinstance(value, str) else f"{value}"
    words = "a list" if isinstance(value, list) else "a mapping"
    return words if value else f"an empty {words[2:]}"


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(source, expected=_FORMS, found=found, fix=_FIX)


SOURCE = Source(
    bound=BOUND,
    place=10,
    origin="table of expert counts",
    fits=fits_expert_counts,
    read=read_expert_counts,
    notes="assumed",
)
