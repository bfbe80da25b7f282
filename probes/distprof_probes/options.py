"""What the probes of a session shall do. Free of torch: launchers make these and pass them on."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from distprof.errors import UsageError

__all__ = ["OPTIONS_VARIABLE", "RUN_DIR_VARIABLE", "ProbeOptions", "options_from_environment"]

OPTIONS_VARIABLE = "DISTPROF_PROBES"
RUN_DIR_VARIABLE = "DISTPROF_RUN_DIR"

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which probes work, and when. The same on all ranks, who switch at the same step numbers.

    Args:
        mode: ``window``: trace some steps; ``always-on``: never trace; ``off``: step log only.
        start_step: First step traced; -1 for soon after the start, see :mod:`distprof_probes.plan`.
        num_steps: Steps traced.
        warmup: Steps before them in which the profiler is armed and its records thrown away.
        total_steps: Steps the job will make, 0 when unknown; a short job is traced earlier.
        settle_steps: Steps at the start that no measurement uses.
        shapes: Record the shapes of operators' inputs. On CPU ranks sizes are known only so.
        stacks: Record Python stacks; costs several percent of a step.
        profile_memory: Record every allocation.
        nvml: Sample the GPU's sensors.
        nvml_period_s: Between two samples, seconds.
        nccl_debug: Let NCCL write its log to a file per rank.
        memory: Record memory at the end of each step.
        reset_peak_memory: Reset torch's peak counters each step, so that each step's own peak is
            known. Off because a program that prints its own peak would then print another.
        flight_recorder: Save torch's Flight Recorder after the window and on errors.
        flight_entries: Collectives that it remembers; only where the user has not said.
        pauses: Record garbage collections and waits for input.
        settings: Read once how data loaders, parallel modules and optimizers are set up.
        pipeline_marks: Mark the work of pipeline stages in the trace.
        moe_routing: Record tokens per expert.
        clock: Exchange time stamps with rank 0.
        attach: Open a unix socket through which ``distprof attach`` reaches this rank.
        measure_overhead: Leave some steps alone and compare.
        overhead_block: Steps per block of that comparison.
        overhead_rounds: Rounds of four blocks (with, without, without, with) at most.
        profile_ranks: Ranks that trace: ``all``, ``none``, or for example ``0,8-15``.
        max_growth_mb: Stop tracing when the process has grown by so many MB meanwhile.
        queue_records: Records per file that may wait to be written; more are dropped and counted.
    """

    mode: Literal["window", "always-on", "off"] = "window"
    start_step: Annotated[int, msgspec.Meta(ge=-1)] = -1
    num_steps: _Positive = 4
    warmup: _Count = 3
    total_steps: _Count = 0
    settle_steps: _Count = 3
    shapes: bool = True
    stacks: bool = False
    profile_memory: bool = False
    nvml: bool = True
    nvml_period_s: Annotated[float, msgspec.Meta(gt=0)] = 0.1
    nccl_debug: bool = True
    memory: bool = True
    reset_peak_memory: bool = False
    flight_recorder: bool = True
    flight_entries: _Positive = 20_000
    pauses: bool = True
    settings: bool = True
    pipeline_marks: bool = True
    moe_routing: bool = True
    clock: bool = True
    attach: bool = True
    measure_overhead: bool = True
    overhead_block: _Positive = 1
    overhead_rounds: _Count = 16
    profile_ranks: str = "all"
    max_growth_mb: _Positive = 2000
    queue_records: _Positive = 10_000

    def to_json(self) -> str:
        """The text for the environment variable DISTPROF_PROBES."""
        return msgspec.json.encode(self).decode()

    def profiles(self, rank: int) -> bool:
        """Whether ``rank`` is one of those that trace.

        Raises:
            UsageError: If ``profile_ranks`` cannot be read.
        """
        if self.profile_ranks in ("all", "none"):
            return self.profile_ranks == "all"
        return any(low <= rank <= high for low, high in _rank_ranges(self.profile_ranks))


def options_from_environment() -> ProbeOptions:
    """Options that the launcher passed in DISTPROF_PROBES; the defaults where there are none.

    Raises:
        UsageError: If the variable does not hold options.
    """
    text = os.environ.get(OPTIONS_VARIABLE)
    if not text:
        return ProbeOptions()
    try:
        return msgspec.json.decode(text, type=ProbeOptions)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{OPTIONS_VARIABLE} holds no probe options: {error}; unset it") from error


def _rank_ranges(text: str) -> list[tuple[int, int]]:
    ranges = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UsageError(
                f"profile_ranks {text!r}: write all, none, or ranks, for example 0,8-15"
            )
        ranges.append((int(low), int(high) if dash else int(low)))
    return ranges
