"""The report of a watcher on a job at one moment, and the alerts that it raises."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from distprof.units import capitalized, name_ranks
from distprof.verbs.displayed import Displayed

WATCH_SCHEMA = "distprof.watch/1"
ALERT_SCHEMA = "distprof.alert/1"
JobState = Literal["waiting", "running", "stalled", "completed", "failed", "interrupted"]
ENDED: tuple[JobState, ...] = ("completed", "failed", "interrupted")


class Alert(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition that began or ended, as it is delivered."""

    schema: str = ALERT_SCHEMA  # ``distprof.alert/1``.
    distprof_version: str  # Version of distprof that wrote it.
    # ``raised`` when the condition began; ``cleared`` when it ended.
    state: Literal["raised", "cleared"]
    kind: str  # Name of the alert in ``--alert``, for example ``slow-rank``.
    message: str  # The alert in one sentence.
    ranks: tuple[int, ...] = ()  # Affected ranks; empty if the alert concerns the whole job.
    step: int | None = None  # Last step known; None before the first.
    time_ns: int  # When the watcher noticed, ns since the epoch.
    source: str  # The run directory.

    def cleared(self, ranks: Collection[int], *, step: int | None, time_ns: int) -> Alert:
        """The alert that says this condition has ended for these ranks, or for the whole job."""
        return msgspec.structs.replace(
            self,
            state="cleared",
            message=sentence_on(ranks, f"no longer: {self.kind}"),
            ranks=tuple(sorted(ranks)),
            step=step,
            time_ns=time_ns,
        )


def sentence_on(ranks: Collection[int], words: str) -> str:
    """A message with its subject: the ranks, or the job if there are none."""
    who = capitalized(name_ranks(sorted(ranks))) if ranks else "The job"
    return f"{who}: {words}"


class LateRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that needs more own time than its peers."""

    rank: int  # Global rank.
    # Its own time per step, median of the window, ns. On GPU ranks a lower bound that includes
    # transfers.
    own_ns: int
    # Excess of its own time over the median of its peers, median of the window, ns. On GPU ranks a
    # lower bound.
    late_ns: int
    # The same as a share of its peers' own time. On GPU ranks the largest lower bound of its
    # lateness at a collective, as a share of the time that its peers need up to there.
    late_ratio: float
    num_above: int  # Steps of the window in which it was above the limit.
    is_slow: bool  # Whether these are enough steps to call it slow.
    # The largest part of the excess: ``no_cpu`` it waits for a CPU; ``input`` it waits for its
    # data; ``more_work`` it computes for longer. On GPU ranks ``device`` if neither of the first
    # two explains half of the excess: the GPU works for longer, or its work is launched later.
    cause: Literal["no_cpu", "input", "more_work", "device"]
    # Upper bound of ``late_ns`` on GPU ranks; None if ``late_ns`` is exact.
    late_most_ns: int | None = None


class LostRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that ended or fell silent while the job continues."""

    rank: int  # Global rank.
    evidence: str  # Evidence of the loss, one sentence.
    last_step: int | None = None  # Last step that it completed; None before the first.


class ThrottledRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank whose GPU is throttled by heat or hardware."""

    rank: int  # Global rank.
    throttled_ratio: float  # Share of the last samples in which it was throttled.
    reasons: tuple[str, ...]  # NVML's names of the reasons, most frequent first.
    sm_clock_mhz: int | None = None  # SM clock in the last sample, MHz; None if unknown.


class MemoryOfRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rank that uses the most memory."""

    rank: int  # Global rank.
    used_bytes: int  # Memory in use, bytes.
    # ``device``: held by tensors on the accelerator; ``process``: resident CPU memory.
    where: Literal["device", "process"]


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overhead of the always-on probes, which the job measures on blocks of steps without them."""

    # Overhead as a share of the step without probes, median over the ranks; 0.01 is 1 %.
    ratio: float
    low: float  # Lower end of the 95 % confidence interval.
    high: float  # Upper end of the interval.
    num_ranks: int  # Ranks that measured it.


class WatchReport(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job at one moment. Windows are the last 40 steps that all ranks have reported."""

    schema: str = WATCH_SCHEMA  # ``distprof.watch/1``.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The run directory.
    time_ns: int  # When the watcher looked, ns since the epoch.
    # ``waiting`` for a first step; ``running``; ``stalled`` if no rank has completed a step for
    # long; or how the job ended.
    state: JobState
    world_size: int | None  # World size of the job; None if unknown.
    num_ranks: int  # Number of ranks that have recorded data.
    step: int | None  # Last step that all ranks have reported; None before the first.
    silent_ns: int | None  # Time since a rank last reported a step, ns; None before the first.
    # Step time in the window, ns: the median; on GPU ranks the mean, because their CPUs run ahead
    # and wait only now and then.
    step_ns: int | None
    # Median step time of the job before the window, on GPU ranks of means over 20 steps; None while
    # there are too few steps.
    usual_step_ns: int | None
    # Tokens per second of all ranks in the window; None if not reported.
    tokens_per_s: float | None
    # Median own time as a share of the step; None if unknown. On GPU ranks a lower bound that
    # includes transfers.
    own_ratio: float | None
    # Share of the step that ranks wait for input, median over steps and ranks.
    input_ratio: float | None
    # The rank that waits longest for input, if it waits for 1 % of the step or more and 20 % longer
    # than the median rank; None otherwise.
    input_rank: int | None
    late: tuple[LateRank, ...]  # Slow ranks, then those most often above the limit; at most 8.
    lost: tuple[LostRank, ...]  # Ranks that ended or fell silent.
    throttled: tuple[ThrottledRank, ...]  # Ranks whose GPU is throttled, at most 8.
    memory: MemoryOfRank | None  # The rank that uses the most memory; None if unknown.
    alerts: tuple[Alert, ...]  # Alerts that are raised now.
    unknown: tuple[str, ...]  # What is unknown and why, one sentence each.
    notes: tuple[str, ...]  # Remarks on files, one sentence each.
    # Source of own time: ``cpu`` the CPU time of the training thread, ``collectives`` the durations
    # of collectives on the GPU; None if own time is unknown.
    own_known_from: Literal["cpu", "collectives"] | None = None
    # Overhead of the always-on probes; None if it has not been measured.
    probe_cost: ProbeCost | None = None
    # Share of steps at whose end the GPU had not finished the step before, mean over ranks; None if
    # it was not observed.
    gpu_behind_ratio: float | None = None
