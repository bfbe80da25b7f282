"""A script that repeats one call of an operator with random data: torch alone, nothing of the run.

Text from a trace never becomes code: the script holds one literal, of checked types and numbers.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from math import prod
from pprint import pformat
from typing import Any

from distprof.costs.operators import parse_inputs, work_of
from distprof.errors import InputError
from distprof.escape import plain, shorten
from distprof.ingest.kineto.strides import find_strides
from distprof.verbs.op.measure import Told

_NAME = re.compile(r"[A-Za-z_]\w{0,99}::[A-Za-z_]\w{0,99}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][\w:<> ]{0,39}|", re.ASCII)
_VALUE = re.compile(r"[\w.,+\-\[\]() ]{0,400}", re.ASCII)
_DEVICE = re.compile(r"[\w .()/-]{1,99}", re.ASCII)
_MOST_ELEMENTS = 1 << 36
_LARGEST = 1 << 40


def script_of(told: Told, which: int) -> str:
    """The script for one row of the story's calls, counted from 1.

    Raises:
        InputError: If the call cannot be repeated; it says why.
    """
    rows = told.calls
    if not 1 <= which <= len(rows):
        raise InputError(
            told.trace, expected=f"a call from 1 to {len(rows)}", found=str(which), fix="--call N"
        )
    stats = rows[which - 1]
    inputs = parse_inputs(stats.inputs)
    if _NAME.fullmatch(stats.name) is None:
        raise _refusal(told, f"{shorten(plain(stats.name), 80)!r}, no operator of PyTorch")
    if inputs is None:
        raise _refusal(told, f"{stats.name} without sizes of its inputs")
    if sum(prod(size) for size in inputs.sizes if size is not None) > _MOST_ELEMENTS:
        raise _refusal(told, f"{stats.name} on more than {_MOST_ELEMENTS:,} elements")
    strides = find_strides(told.trace, stats.name, json.loads(stats.inputs)[0]) or []
    count, work = len(inputs.sizes), work_of(stats.name, stats.inputs)
    device = told.story.device
    call = {
        "operator": stats.name,
        "sizes": [list(size) if size is not None else [] for size in inputs.sizes],
        "types": [kind if _TYPE.fullmatch(kind) else "" for kind in inputs.types],
        "values": [text if _VALUE.fullmatch(text) else "" for text in inputs.values],
        "strides": [_stride(one) for one in strides] if len(strides) == count else None,
        "traced_ns": stats.total_ns / stats.num_calls,
        "device": device if _DEVICE.fullmatch(device) else "the GPU of the trace",
        "flop": work.flop,
        "bytes": work.bytes,
    }
    template = files("distprof.verbs.op").joinpath("call.template").read_text("utf-8")
    return template.replace("@CALL@", pformat(call, width=99, sort_dicts=False))


def _stride(found: Any) -> list[int] | None:
    """The strides of one tensor; None for anything else."""
    if isinstance(found, list) and all(type(one) is int and 0 <= one < _LARGEST for one in found):
        return found
    return None


def _refusal(told: Told, found: str) -> InputError:
    return InputError(
        told.trace,
        expected="an operator with recorded sizes, which a script can call again",
        found=found,
        fix="capture with record_shapes=True, and name an operator that launches kernels itself, "
        "such as aten::addmm instead of aten::linear",
    )
