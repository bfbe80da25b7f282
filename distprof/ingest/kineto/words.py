"""The trace's words for categories, translated once.

Spellings come from Kineto's ``ActivityType.cpp`` and, for the capitalised ones, from the traces
that PyTorch 1.8 wrote. A category that is not listed keeps the trace's own word and is host work,
even when its arguments name a stream: compiled Triton operators carry ``stream: 0`` on the host.
"""

from __future__ import annotations

import re

from distprof.terms import ActivityKind

__all__ = [
    "COMM_NAME",
    "DEVICE_KINDS",
    "HOST_WORDS",
    "KEPT_OPERATOR_NAME",
    "PYTHON_FRAME",
    "STEP_PREFIX",
    "USUAL_CATEGORIES",
    "normalise",
]

DEVICE_KINDS: dict[str, ActivityKind] = {
    "kernel": ActivityKind.COMPUTATION,
    "gpu_memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.COPY,
    "gpu_user_annotation": ActivityKind.ANNOTATION,
}
"""Categories of device rows after :func:`normalise`, and what such a row does."""

HOST_WORDS: dict[str, str] = {
    "cuda_runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "user_annotation": "annotation",
    "cuda_sync": "sync",
    # PyTorch 1.8 to 1.12
    "Operator": "cpu_op",
    "Runtime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "concurrent_kernel": "kernel",
}
"""The trace's word to ours."""

PYTHON_FRAME = "python_function"
"""Rows of this category are counted and dropped: they are most of a trace with stacks."""

STEP_PREFIX = "ProfilerStep#"

COMM_NAME = re.compile(
    r"c10d::|_?c10d_functional::|symm_mem::|(gloo|nccl|xccl|ucc|mpi):|record_param_comms"
)
"""Matches (from the start) names of host rows that enter COMM_ARGS even without arguments."""

KEPT_OPERATOR_NAME = re.compile(
    r"(c10d::|_?c10d_functional::|gloo:|nccl:|record_param_comms|ProfilerStep#|Optimizer\.)"
    r"|torch\.distributed\.ddp\.reducer::search_unused_parameters|.*[dD]ata[lL]oader",
    re.DOTALL,
)
"""Matches (from the start) operators kept beside a host sink: analyses ask for no others."""


USUAL_CATEGORIES = (
    *HOST_WORDS,
    *DEVICE_KINDS,
    PYTHON_FRAME,
    "cpu_op",
    "cpu_instant_event",
    "overhead",
    "Trace",
)
"""The trace's words for categories of events with a duration; files with others take longer."""


def normalise(category: str) -> str:
    """Our word for the trace's category; the same word when it is not listed."""
    return HOST_WORDS.get(category, category)
