"""The result of a comparison: ``distprof.comparison/1``."""

from __future__ import annotations

from typing import Literal

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.sections.picture import StepPicture
from distprof.verbs import Displayed

Match = Literal["same", "fused", "reshaped", "replaced", "appeared", "vanished", "rest"]
Trend = Literal["slower", "faster", "alike", "unknown"]
State = Literal["slower", "faster", "alike", "appeared", "vanished", "unlisted"]


class ComparedRun(Record, frozen=True, kw_only=True):
    """One of the two runs."""

    source: str  # The input, as the user named it.
    world_size: int | None  # Number of ranks.
    device: str  # Device of its ranks.
    workload: str  # The workload, or the command of the program.
    git_commit: str  # Commit of the code; empty if unknown.
    num_steps: int  # Number of steps that its step time is computed from.
    is_traced: bool  # Whether a profiler was active during these steps.
    throughput_per_s: float | None  # Throughput of all ranks, in ``throughput_unit``.
    throughput_unit: str  # ``tokens`` or ``samples``; empty if neither is known.
    peak_memory_bytes: int | None  # Peak memory, maximum over all ranks.


class FingerprintChange(Record, frozen=True, kw_only=True):
    """A fact that differs; ``forbids`` means that the runs are not like for like because of it."""

    field: str
    group: str
    first: str
    second: str
    forbids: bool


class StepChange(Record, frozen=True, kw_only=True):
    """Median steps of both runs with their uncertainty; times in ns."""

    first_ns: int | None  # Median of the first run; None without steps.
    # Lower end of its 95 % interval; None if there are too few steps for one.
    first_low_ns: int | None
    first_high_ns: int | None  # Upper end of the interval.
    second_ns: int | None  # Median of the second run.
    second_low_ns: int | None  # Lower end of its 95 % interval.
    second_high_ns: int | None  # Upper end of the interval.
    change_ns: int | None  # Second minus first.
    change_ratio: float | None  # Change divided by the first median; 0.1 is 10 % slower.
    # ``alike`` if chance may explain the difference, ``unknown`` if there are too few steps to
    # decide.
    trend: Trend
    # Two-sided p-value of the Mann-Whitney test on the steps; None if a side has no steps.
    p_value: float | None = None
    # Steps of the second run beyond every step of the first, in the direction of the change.
    num_apart: int = 0


class PartChange(Record, frozen=True, kw_only=True):
    """A part of the mean traced step; the changes of all parts add up to the change of the step."""

    part: str
    first_ns: int
    second_ns: int
    change_ns: int


class KernelChange(Record, frozen=True, kw_only=True):
    """One kernel name; times and counts per rank and step.

    ``unlisted``: the table of the other run ends in a folded row, which may contain the kernel.
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


class OperatorChange(Record, frozen=True, kw_only=True):
    """Operators that correspond; times and calls per rank and step.

    ``same``: the same operator and inputs. ``fused``: operators of one run, and kernels of a
    compiler whose names list them. ``reshaped``: the same operator with other inputs.
    ``replaced``: other operators of the same category. ``rest``: what a report does not list.
    """

    match: Match
    name: str  # Operator, or kernel if no operator launched it; several joined by ``+``.
    second_name: str = ""  # The same in the second run; empty if it has the same or none.
    part: str = ""  # ``forward``, ``backward``, ``recomputation``, ``optimizer`` or ``other``.
    category: str = ""  # Name of its category.
    # Types and sizes of its tensors in the first run, those with most time; empty if unknown.
    first_inputs: str = ""
    second_inputs: str = ""  # The same in the second run.
    first_kernel: str = ""  # Its longest kernel in the first run.
    second_kernel: str = ""  # The same in the second run.
    first_calls: float
    second_calls: float
    first_ns: int
    second_ns: int
    change_ns: int


class CollectiveChange(Record, frozen=True, kw_only=True):
    """One class of collectives; times and counts per rank and step."""

    kind: str  # Operation.
    axis: str  # Mesh axis, or else the description or name of the group.
    # Size; None if classes of all sizes are added up because the groups of the runs differ in size.
    bytes: int | None
    state: State  # State by exposed time.
    first_exposed_ns: int | None  # Exposed time in the first run; None if it was not measured.
    second_exposed_ns: int | None  # The same in the second run.
    first_wait_ns: int | None  # The part of it spent waiting for late ranks.
    second_wait_ns: int | None  # The same in the second run.
    first_count: float | None  # Instances per step in the first run.
    second_count: float | None  # The same in the second run.
    # Bus bandwidth in the first run; None if sizes are added up.
    first_busbw_bytes_per_s: float | None
    second_busbw_bytes_per_s: float | None  # The same in the second run.
    change_ns: int  # Change of exposed time.


class FindingChange(Record, frozen=True, kw_only=True):
    """A rule with findings in one run or in both, and their costs."""

    code: str
    name: str
    state: Literal["new", "gone", "both"]
    first_cost_ns_per_step: int | None
    second_cost_ns_per_step: int | None


class Comparison(Displayed, Result, frozen=True, kw_only=True):
    """The comparison of two runs."""

    schema: str = "distprof.comparison/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    first: ComparedRun  # The reference run.
    second: ComparedRun  # The run compared with it.
    is_alike: bool  # Whether hardware and job are the same, as far as both runs record them.
    differences: tuple[FingerprintChange, ...]  # Facts that differ, hardware first.
    step: StepChange  # Step time.
    # Change of the traced step by part, which add up exactly; empty without traces.
    parts: tuple[PartChange, ...]
    kernels: tuple[KernelChange, ...]  # Kernels, largest change first.
    # Operators, largest change first and the rest last. Their changes add up to that of the
    # computation; empty unless the operators of both runs were read.
    operators: tuple[OperatorChange, ...] = ()
    collectives: tuple[CollectiveChange, ...]  # Classes of collectives, largest change first.
    findings: tuple[FindingChange, ...]  # Findings by rule, new ones first.
    # The step of both runs, drawn; each empty without a picture in its report.
    pictures: tuple[StepPicture, ...] = ()
    # Properties that both runs record; differences in others are unknown.
    compared: tuple[str, ...] = ()
    # Share of the computation in kernels that both runs have, the smaller one of both runs; None
    # without kernels.
    common_kernels_ratio: float | None = None
