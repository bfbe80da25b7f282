"""The answer of a comparison: ``distprof.comparison/1``."""

from __future__ import annotations

from typing import Literal

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = [
    "COMPARISON_SCHEMA",
    "CollectiveChange",
    "ComparedRun",
    "Comparison",
    "FindingChange",
    "FingerprintChange",
    "KernelChange",
    "PartChange",
    "StepChange",
    "Trend",
]

COMPARISON_SCHEMA = "distprof.comparison/1"

Trend = Literal["slower", "faster", "alike", "unknown"]
State = Literal["slower", "faster", "alike", "appeared", "vanished", "unlisted"]


class ComparedRun(Record, frozen=True, kw_only=True):
    """One of the two runs.

    Args:
        source: As the user named it.
        world_size: Ranks of its job.
        device: Of its ranks.
        workload: What was trained.
        git_commit: Of the code; empty where unknown.
        num_steps: Steps that its step time rests on.
        is_traced: Whether a profiler was recording during these steps.
        throughput_per_s: All ranks together; samples where no tokens are known.
        throughput_unit: ``tokens`` or ``samples``; empty where neither is known.
        peak_memory_bytes: Highest of all ranks.
    """

    source: str
    world_size: int | None
    device: str
    workload: str
    git_commit: str
    num_steps: int
    is_traced: bool
    throughput_per_s: float | None
    throughput_unit: str
    peak_memory_bytes: int | None


class FingerprintChange(Record, frozen=True, kw_only=True):
    """A fact that is not the same; ``forbids`` says whether runs are no longer like for like."""

    field: str
    group: str
    first: str
    second: str
    forbids: bool


class StepChange(Record, frozen=True, kw_only=True):
    """Median step of both, and what chance leaves open; times in ns.

    Args:
        first_ns: Median of the first run; None without steps.
        first_low_ns: Lower end of its 95 % interval; None where there are too few steps for one.
        first_high_ns: Upper end.
        second_ns: Median of the second run.
        second_low_ns: Lower end.
        second_high_ns: Upper end.
        change_ns: Second minus first.
        change_ratio: Of the first; 0.1 is ten percent slower.
        trend: ``alike`` where the intervals overlap, ``unknown`` where there are none.
    """

    first_ns: int | None
    first_low_ns: int | None
    first_high_ns: int | None
    second_ns: int | None
    second_low_ns: int | None
    second_high_ns: int | None
    change_ns: int | None
    change_ratio: float | None
    trend: Trend


class PartChange(Record, frozen=True, kw_only=True):
    """A part of the mean traced step; the changes of all parts add up to that of the step."""

    part: str
    first_ns: int
    second_ns: int
    change_ns: int


class KernelChange(Record, frozen=True, kw_only=True):
    """One kernel name; times and counts per rank and step.

    ``unlisted``: the other run's table is folded at its end, so that it may be in there.
    """

    name: str
    kind: str
    state: State
    first_ns: int | None
    second_ns: int | None
    first_count: float | None
    second_count: float | None
    first_median_ns: int | None
    second_median_ns: int | None
    change_ns: int


class CollectiveChange(Record, frozen=True, kw_only=True):
    """One class of collectives; times and counts per rank and step.

    Args:
        kind: Operation.
        axis: Mesh axis, else the group's description or name.
        bytes: Size; None where classes of all sizes are added up, because the runs' groups differ.
        state: By its exposed time.
        first_exposed_ns: Not hidden by computation, first run; None where it was not measured.
        second_exposed_ns: The same of the second.
        first_wait_ns: Of that, waiting for the last member.
        second_wait_ns: The same of the second.
        first_count: Instances per step.
        second_count: The same of the second.
        first_busbw_bytes_per_s: Bus bandwidth; None where sizes are added up.
        second_busbw_bytes_per_s: The same of the second.
        change_ns: Of exposed time.
    """

    kind: str
    axis: str
    bytes: int | None
    state: State
    first_exposed_ns: int | None
    second_exposed_ns: int | None
    first_wait_ns: int | None
    second_wait_ns: int | None
    first_count: float | None
    second_count: float | None
    first_busbw_bytes_per_s: float | None
    second_busbw_bytes_per_s: float | None
    change_ns: int


class FindingChange(Record, frozen=True, kw_only=True):
    """A rule that found something in one run only, or in both; costs of all its findings."""

    code: str
    name: str
    state: Literal["new", "gone", "both"]
    first_cost_ns_per_step: int | None
    second_cost_ns_per_step: int | None


class Comparison(Result, frozen=True, kw_only=True):
    """Two runs.

    Args:
        schema: Of this document.
        distprof_version: Who made it.
        first: The one that is compared with.
        second: The one that is compared.
        is_alike: Whether hardware and job are the same, as far as both runs tell.
        differences: What is not the same, hardware first.
        step: Step time.
        parts: Where the change of the traced step lies, an exact sum; empty without traces.
        kernels: Largest change first.
        collectives: Largest change first.
        findings: New ones first.
    """

    schema: str = COMPARISON_SCHEMA
    distprof_version: str
    first: ComparedRun
    second: ComparedRun
    is_alike: bool
    differences: tuple[FingerprintChange, ...]
    step: StepChange
    parts: tuple[PartChange, ...]
    kernels: tuple[KernelChange, ...]
    collectives: tuple[CollectiveChange, ...]
    findings: tuple[FindingChange, ...]
