"""Tokens per expert, counted by another program: a small JSON file.

Three forms, each with a list of counts per layer, one count per expert::

    {"domains": {"code": [[…], …], "prose": [[…], …]}, "layers": [0, 7], "top_k": 8, "model": "…"}
    {"layers": [[…], …], "top_k": 2}
    [[…], …]

In the first, ``layers`` are the names of the layers, and ``num_experts`` is checked if present.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound, num_parts, open_plain
from distprof.errors import InputError
from distprof.ingest.source import Source
from distprof.remote.system import ask
from distprof.run.evidence import ExpertCounts

BOUND = Bound(
    reads="tokens per expert",
    num_bytes=64_000_000,
    rows=8_000_000,
    depth=1_000,
    beyond="refused",
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
    if not source.lower().endswith(".json"):
        return False
    try:
        start = _read(source, _SNIFFED_BYTES)
    except (OSError, ValueError, ImportError, InputError):
        return False
    if any(word in start for word in _NOT_COUNTS):
        return False
    return bool(_BEGINS_WITH_COUNTS.match(start) or _HAS_COUNTS.search(start))


def read_expert_counts(source: str) -> ExpertCounts:
    """Read counts of tokens per expert.

    Raises:
        InputError: If it cannot be read or has none of these forms. The message names the key.
    """
    document = _decode(source)
    if isinstance(document, list):
        document = {"layers": document}
    if not isinstance(document, dict):
        _refuse(source, f"{_kind(document)} at the top")
    if "domains" in document:
        parts = _domains(source, document["domains"])
        layers = _names(source, document, len(next(iter(parts.values()))))
    else:
        parts = {"": _table(source, "layers", document.get("layers"))}
        layers = tuple(str(index) for index in range(len(parts[""])))
    _check_experts(source, document, parts)
    return ExpertCounts(
        tokens=parts,
        layers=layers,
        top_k=_top_k(source, document),
        model=document["model"] if isinstance(document.get("model"), str) else "",
        notes=("Tokens per expert are counts from a file; nothing was timed.",),
    )


def _read(source: str, limit: int) -> bytes:
    if "://" not in source:
        with open_plain(source) as stream:
            return stream.read(limit)
    with ask(source, lambda system, place: system.open(place, "rb")) as remote:
        return bytes(remote.read(limit))


def _decode(source: str) -> Any:
    try:
        data = _read(source, BOUND.num_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            source,
            expected=_FORMS,
            found=f"not readable: {error}",
            fix=("check the path and your permissions"),
        ) from error
    if len(data) > BOUND.num_bytes:
        _refuse(source, f"more than {BOUND.num_bytes:,} bytes")
    if BOUND.rows is not None and num_parts(data) > BOUND.rows:
        _refuse(source, f"more than {BOUND.rows:,} values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(
            source, expected=_FORMS, found=(f"invalid JSON: {error}"), fix=_FIX
        ) from error


def _domains(source: str, domains: Any) -> dict[str, NDArray[np.int64]]:
    if not isinstance(domains, dict) or not domains:
        _refuse(source, f"{_kind(domains)} under domains")
    if len(domains) > MAX_PARTS:
        _refuse(source, f"{len(domains):,} domains, more than {MAX_PARTS:,}")
    parts = {name: _table(source, f"domains.{name}", rows) for name, rows in domains.items()}
    shapes = {name: table.shape for name, table in parts.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            _refuse(
                source,
                f"{_shape(shape)} in domains.{name}, {_shape(shapes[first])} in domains.{first}",
            )
    return parts


def _table(source: str, key: str, rows: Any) -> NDArray[np.int64]:
    if not isinstance(rows, list) or not rows:
        _refuse(source, f"{_kind(rows)} under {key}")
    if len(rows) > MAX_LAYERS:
        _refuse(source, f"{len(rows):,} layers under {key}, more than {MAX_LAYERS:,}")
    for index, row in enumerate(rows):
        _check_row(source, f"{key}[{index}]", row, rows[0])
    return np.array(rows, dtype=np.int64)


def _check_row(source: str, key: str, row: Any, first: Any) -> None:
    if not isinstance(row, list) or not row:
        _refuse(source, f"{_kind(row)} under {key}")
    if len(row) != len(first):
        _refuse(source, f"{len(row)} counts under {key}, {len(first)} in the first layer")
    for index, count in enumerate(row):
        if type(count) is not int or not 0 <= count < MAX_COUNT:
            _refuse(source, f"{_kind(count)} under {key}[{index}]")


def _names(source: str, document: Mapping[str, Any], number: int) -> tuple[str, ...]:
    names = document.get("layers", list(range(number)))
    if not isinstance(names, list) or not all(type(name) in (int, str) for name in names):
        _refuse(source, f"{_kind(names)} under layers, which names the layers of each domain")
    if len(names) != number or len(set(names)) != number:
        _refuse(source, f"{len(set(names))} different names under layers for {number} layers")
    return tuple(str(name) for name in names)


def _check_experts(
    source: str, document: Mapping[str, Any], parts: Mapping[str, NDArray[np.int64]]
) -> None:
    declared = document.get("num_experts")
    num_experts = next(iter(parts.values())).shape[1]
    if declared is not None and declared != num_experts:
        _refuse(source, f"{num_experts} counts per layer, but num_experts is {_kind(declared)}")


def _top_k(source: str, document: Mapping[str, Any]) -> int | None:
    top_k = document.get("top_k")
    if top_k is None:
        return None
    if type(top_k) is not int or not 0 < top_k < MAX_COUNT:
        _refuse(source, f"{_kind(top_k)} under top_k")
    return top_k


def _shape(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} layers of {shape[1]} experts"


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
