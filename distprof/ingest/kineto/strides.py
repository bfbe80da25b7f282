"""Strides of an operator's inputs, which no table holds: searched for in the trace itself."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from distprof.errors import DistprofError
from distprof.ingest.kineto.source import ByteSource

_BLOCK, _LONGEST = 1 << 22, 1 << 16
_ARGUMENTS = re.compile(rb'"args"\s*:\s*(?=\{)')


def find_strides(path: str, operator: str, sizes: list[Any]) -> list[Any] | None:
    """Strides of the first call with these sizes; None if the trace does not record them."""
    needle = re.compile(rb'"name"\s*:\s*' + re.escape(json.dumps(operator).encode()))
    with suppress(DistprofError, OSError), ByteSource(path, path) as source:
        data = b""
        while block := source.read(_BLOCK):
            data = data[-_LONGEST:] + block
            for match in needle.finditer(data):
                found = _arguments(data[match.end() : match.end() + _LONGEST])
                if found.get("Input Dims") == sizes and isinstance(
                    strides := found.get("Input Strides"), list
                ):
                    return strides
    return None


def _arguments(text: bytes) -> dict[str, Any]:
    """The arguments of the event whose name has just ended; empty if they are cut or damaged."""
    start = _ARGUMENTS.search(text)
    if start is None or b"}" in text[: start.start()]:
        return {}
    with suppress(ValueError, RecursionError):
        found, _ = json.JSONDecoder().raw_decode(text[start.end() :].decode("utf-8", "replace"))
        return dict(found)
    return {}
