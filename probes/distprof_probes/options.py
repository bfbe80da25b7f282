"""Options of a session's probes. Does not import torch: launchers create and forward them."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from distprof.errors import UsageError
from distprof.options import option

OPTIONS_VARIABLE = "DISTPROF_PROBES"
RUN_DIR_VARIABLE = "DISTPROF_RUN_DIR"


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which probes run, and when. Identical on all ranks, so that they switch at the same steps."""

    mode: Annotated[
        Literal["window", "always-on", "off"],
        option("Window: trace some steps; always-on: never trace; off: step log only."),
    ] = "window"
    start_step: Annotated[
        int,
        option("First step to trace; -1: soon after the start, see distprof_probes.plan.", ge=-1),
    ] = -1
    num_steps: Annotated[
        int,
        option(
            "Number of steps to trace; 0: four, and more on 2 to 4 ranks, where each step has fewer"
            " ranks to compare.",
            ge=0,
            flag="profile-steps",
        ),
    ] = 4
    light_steps: Annotated[
        int,
        option(
            "Steps before them in which only the GPU is recorded, which costs less; 0 for none. CPU"
            " ranks have none.",
            ge=0,
        ),
    ] = 4
    warmup: Annotated[
        int,
        option(
            "Warm-up steps before them: the profiler runs, and its records are discarded.",
            ge=0,
            flag="profile-warmup",
        ),
    ] = 3
    total_steps: Annotated[
        int,
        option("Steps in the job, 0 if unknown; a short job is traced earlier.", ge=0),
    ] = 0
    settle_steps: Annotated[int, option("Steps at the start that measurements skip.", ge=0)] = 3
    shapes: Annotated[
        bool,
        option("Record operators' input shapes. On CPU ranks, message sizes need them."),
    ] = True
    stacks: Annotated[bool, option("Record Python stacks; costs several % of a step.")] = False
    profile_memory: Annotated[bool, option("Record every memory allocation.")] = False
    nvml: Annotated[bool, option("Sample the GPU's sensors.")] = True
    nvml_period_s: Annotated[float, option("Seconds between two samples.", gt=0)] = 0.1
    nccl_debug: Annotated[bool, option("Write NCCL's log to a file per rank.")] = True
    memory: Annotated[bool, option("Record memory at the end of each step.")] = True
    reset_peak_memory: Annotated[
        bool,
        option(
            "Reset torch's peak-memory counters every step to record the peak of each step."
            " Off by default: a program that prints its own peak would print a different value."
        ),
    ] = False
    flight_recorder: Annotated[
        bool, option("Save torch's Flight Recorder after the window and on errors.")
    ] = True
    flight_entries: Annotated[
        int, option("Collectives that it keeps; a value set by the user takes precedence.", ge=1)
    ] = 20_000
    collective_times: Annotated[
        bool,
        option(
            "Record how long NCCL's operations take on the GPU, if TORCH_NCCL_ENABLE_TIMING=1"
            " is set."
        ),
    ] = True
    pauses: Annotated[bool, option("Record garbage collections and waits for input.")] = True
    settings: Annotated[
        bool,
        option("Read the configuration of data loaders, parallel modules and optimizers once."),
    ] = True
    pipeline_marks: Annotated[bool, option("Mark the work of pipeline stages in the trace.")] = True
    moe_routing: Annotated[bool, option("Record tokens per expert.")] = True
    clock: Annotated[bool, option("Exchange time stamps with rank 0.")] = True
    attach: Annotated[
        bool,
        option(
            "Open a Unix socket through which distprof attach reaches this rank, and look for its"
            " requests from other nodes in the run directory."
        ),
    ] = True
    measure_overhead: Annotated[
        bool, option("Pause the probes for a few steps to measure their cost.")
    ] = True
    overhead_block: Annotated[int, option("Steps per block of that comparison.", ge=1)] = 1
    overhead_rounds: Annotated[
        int, option("Maximum rounds of four blocks (with, without, without, with).", ge=0)
    ] = 16
    profile_ranks: Annotated[
        str, option("Ranks to trace: all, none, or a list such as 0,8-15.")
    ] = "all"
    max_growth_mb: Annotated[
        int, option("Stop tracing when the process has grown by this many MB.", ge=1)
    ] = 2000
    queue_records: Annotated[
        int,
        option(
            "Records per file that may wait for the disk; the rest is dropped and counted.",
            ge=1,
        ),
    ] = 10_000

    def to_json(self) -> str:
        """The text for the environment variable DISTPROF_PROBES."""
        return msgspec.json.encode(self).decode()

    def profiles(self, rank: int) -> bool:
        """Whether ``rank`` is traced; UsageError if ``profile_ranks`` cannot be read."""
        if self.profile_ranks in ("all", "none"):
            return self.profile_ranks == "all"
        return any(low <= rank <= high for low, high in _rank_ranges(self.profile_ranks))


def options_from_environment() -> ProbeOptions:
    """Options that the launcher passed in DISTPROF_PROBES; the defaults if it passed none."""
    text = os.environ.get(OPTIONS_VARIABLE)
    if not text:
        return ProbeOptions()
    try:
        return msgspec.json.decode(text, type=ProbeOptions)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{OPTIONS_VARIABLE} is not valid: {error}; unset it") from error


def _rank_ranges(text: str) -> list[tuple[int, int]]:
    ranges = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UsageError(
                f"profile_ranks {text!r}: use all, none, or a list of ranks such as 0,8-15"
            )
        ranges.append((int(low), int(high) if dash else int(low)))
    return ranges
