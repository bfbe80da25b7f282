"""Arguments of events that no table holds: searched for in the trace itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from distprof.errors import DistprofError
from distprof.ingest.kineto.source import ByteSource

_BLOCK, _LONGEST = 1 << 22, 1 << 16
_ARGUMENTS = re.compile(rb'"args"\s*:\s*(?=\{)')


def find_strides(path: str, operator: str, sizes: list[Any]) -> list[Any] | None:
    """Strides of the first call with these sizes; None if the trace does not record them."""
    for _, found in _found(path, (operator,)):
        strides = found.get("Input Strides")
        if found.get("Input Dims") == sizes and isinstance(strides, list):
            return strides
    return None


def find_launches(path: str, kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Arguments of the first launch of each kernel, as far as CUPTI recorded them.

    The properties of the GPU are under the empty name.
    """
    launches: dict[str, dict[str, Any]] = {}
    for name, found in _found(path, kernels):
        if "registers per thread" in found or (found and not name):
            launches.setdefault(name, found)
        if len(launches) > len(kernels):
            break
    return launches


def _found(path: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments of events, and the properties of the first GPU under the empty name."""
    texts = b"|".join(re.escape(json.dumps(name).encode()) for name in names)
    needle = re.compile(rb'"name"\s*:\s*(' + texts + rb')|"deviceProperties"\s*:\s*\[\s*(?=\{)')
    with suppress(DistprofError, OSError), ByteSource(path, path) as source:
        data = b""
        while block := source.read(_BLOCK):
            data = data[-_LONGEST:] + block
            for match in needle.finditer(data):
                rest = data[match.end() : match.end() + _LONGEST]
                if match[1] is None:
                    yield "", _decoded(rest)
                else:
                    yield json.loads(match[1]), _arguments(rest)


def _arguments(text: bytes) -> dict[str, Any]:
    """The arguments of the event whose name has just ended; empty if they are cut or damaged."""
    start = _ARGUMENTS.search(text)
    if start is None or b"}" in text[: start.start()]:
        return {}
    return _decoded(text[start.end() :])


def _decoded(text: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
        return dict(found)
    return {}
