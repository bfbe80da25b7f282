"""What the probes of a session shall do. Free of torch: launchers make these and pass them on."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from distprof.errors import UsageError
from distprof.options import option

__all__ = ["OPTIONS_VARIABLE", "RUN_DIR_VARIABLE", "ProbeOptions", "options_from_environment"]

OPTIONS_VARIABLE = "DISTPROF_PROBES"
RUN_DIR_VARIABLE = "DISTPROF_RUN_DIR"


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which probes work, and when. The same on all ranks, who switch at the same step numbers."""

    mode: Annotated[
        Literal["window", "always-on", "off"],
        option("Window: trace some steps; always-on: never trace; off: step log only."),
    ] = "window"
    start_step: Annotated[
        int,
        option("First step traced; -1 for soon after the start, see distprof_probes.plan.", ge=-1),
    ] = -1
    num_steps: Annotated[int, option("Steps traced.", ge=1, flag="profile-steps")] = 4
    warmup: Annotated[
        int,
        option(
            "Steps before them in which the profiler is armed and its records thrown away.",
            ge=0,
            flag="profile-warmup",
        ),
    ] = 3
    total_steps: Annotated[
        int, option("Steps the job will make, 0 when unknown; a short job is traced earlier.", ge=0)
    ] = 0
    settle_steps: Annotated[int, option("Steps at the start that no measurement uses.", ge=0)] = 3
    shapes: Annotated[
        bool,
        option("Record the shapes of operators' inputs. On CPU ranks sizes are known only so."),
    ] = True
    stacks: Annotated[bool, option("Record Python stacks; costs several percent of a step.")] = (
        False
    )
    profile_memory: Annotated[bool, option("Record every allocation.")] = False
    nvml: Annotated[bool, option("Sample the GPU's sensors.")] = True
    nvml_period_s: Annotated[float, option("Between two samples, seconds.", gt=0)] = 0.1
    nccl_debug: Annotated[bool, option("Let NCCL write its log to a file per rank.")] = True
    memory: Annotated[bool, option("Record memory at the end of each step.")] = True
    reset_peak_memory: Annotated[
        bool,
        option(
            "Reset torch's peak counters each step, so that each step's own peak is"
            " known. Off because a program that prints its own peak would then print another."
        ),
    ] = False
    flight_recorder: Annotated[
        bool, option("Save torch's Flight Recorder after the window and on errors.")
    ] = True
    flight_entries: Annotated[
        int, option("Collectives that it remembers; only where the user has not said.", ge=1)
    ] = 20_000
    pauses: Annotated[bool, option("Record garbage collections and waits for input.")] = True
    settings: Annotated[
        bool, option("Read once how data loaders, parallel modules and optimizers are set up.")
    ] = True
    pipeline_marks: Annotated[bool, option("Mark the work of pipeline stages in the trace.")] = True
    moe_routing: Annotated[bool, option("Record tokens per expert.")] = True
    clock: Annotated[bool, option("Exchange time stamps with rank 0.")] = True
    attach: Annotated[
        bool, option("Open a unix socket through which distprof attach reaches this rank.")
    ] = True
    measure_overhead: Annotated[bool, option("Leave some steps alone and compare.")] = True
    overhead_block: Annotated[int, option("Steps per block of that comparison.", ge=1)] = 1
    overhead_rounds: Annotated[
        int, option("Rounds of four blocks (with, without, without, with) at most.", ge=0)
    ] = 16
    profile_ranks: Annotated[str, option("Ranks that trace: all, none, or for example 0,8-15.")] = (
        "all"
    )
    max_growth_mb: Annotated[
        int, option("Stop tracing when the process has grown by so many MB meanwhile.", ge=1)
    ] = 2000
    queue_records: Annotated[
        int,
        option("Records per file that may wait to be written; more are dropped and counted.", ge=1),
    ] = 10_000

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
