"""The result of ``distprof op``: ``distprof.operator/1``."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.sections.computation.result import OperatorRow
from distprof.verbs.displayed import Displayed

OPERATOR_SCHEMA = "distprof.operator/1"


class KernelTime(Record, frozen=True, kw_only=True):
    """One kernel of the operator."""

    name: str
    count: int  # In all analysed steps.
    total_ns: int
    median_ns: int


class Caller(Record, frozen=True, kw_only=True):
    """Operators and annotations around the operator."""

    path: str  # From outside to inside, joined by ``>``; empty if nothing was around it.
    num_calls: int
    total_ns: int


class OperatorStory(Displayed, Result, frozen=True, kw_only=True):
    """One operator or kernel on one rank, all analysed steps together."""

    schema: str = OPERATOR_SCHEMA  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The input, as the user named it.
    name: str  # Its full name.
    is_kernel: bool  # Whether it is a kernel rather than an operator.
    rank: int
    device: str  # Name of the GPU.
    num_steps: int  # Analysed steps.
    total_ns: int  # Time of its kernels: the sum of the calls, of the kernels and of the callers.
    computation_ns: int  # Time of all computation kernels of the rank.
    calls: tuple[OperatorRow, ...]  # Its calls by inputs and pass, longest first.
    kernels: tuple[KernelTime, ...]  # Longest first.
    callers: tuple[Caller, ...]  # Longest first.
    is_measured: bool = False  # Whether ``distprof bench --compute`` measured its limits.
