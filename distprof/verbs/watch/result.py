"""The report of a watcher on a job at one moment, and the alerts that it raises."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from distprof.formats import Displayed
from distprof.units import capitalized, name_ranks

WATCH_SCHEMA = "distprof.watch/1"
ALERT_SCHEMA = "distprof.alert/1"

JobState = Literal["waiting", "running", "stalled", "completed", "failed", "interrupted"]


class Alert(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition that began or ended, as it is delivered.

    Args:
        schema: ``distprof.alert/1``.
        distprof_version: Version of distprof that wrote it.
        state: ``raised`` when the condition began; ``cleared`` when it ended.
        kind: Name of the alert in ``--alert``, for example ``slow-rank``.
        message: The alert in one sentence.
        ranks: Affected ranks; empty if the alert concerns the whole job.
        step: Last step known; None before the first.
        time_ns: When the watcher noticed, ns since the epoch.
        source: The run directory.
    """

    schema: str = ALERT_SCHEMA
    distprof_version: str
    state: Literal["raised", "cleared"]
    kind: str
    message: str
    ranks: tuple[int, ...] = ()
    step: int | None = None
    time_ns: int
    source: str

    def cleared(self, ranks: Collection[int], *, step: int | None, time_ns: int) -> Alert:
        """The alert that says this condition has ended.

        Args:
            ranks: Ranks for which it ended; empty if the alert concerns the whole job.
            step: Last step known.
            time_ns: When the watcher noticed, ns since the epoch.
        """
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
    """A rank that needs more own time than its peers.

    Args:
        rank: Global rank.
        own_ns: Its own time per step, median of the window, ns. On GPU ranks a lower bound that
            includes transfers.
        late_ns: Excess of its own time over the median of its peers, median of the window, ns. On
            GPU ranks a lower bound.
        late_ratio: The same as a share of its peers' own time. On GPU ranks the largest lower bound
            of its lateness at a collective, as a share of the time that its peers need up to there.
        num_above: Steps of the window in which it was above the limit.
        is_slow: Whether these are enough steps to call it slow.
        cause: The largest part of the excess: ``no_cpu`` it waits for a CPU; ``input`` it waits for
            its data; ``more_work`` it computes for longer. On GPU ranks ``device`` if neither of
            the first two explains half of the excess: the GPU works for longer, or its work is
            launched later.
        late_most_ns: Upper bound of ``late_ns`` on GPU ranks; None if ``late_ns`` is exact.
    """

    rank: int
    own_ns: int
    late_ns: int
    late_ratio: float
    num_above: int
    is_slow: bool
    cause: Literal["no_cpu", "input", "more_work", "device"]
    late_most_ns: int | None = None


class LostRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that ended or fell silent while the job continues.

    Args:
        rank: Global rank.
        evidence: Evidence of the loss, one sentence.
        last_step: Last step that it completed; None before the first.
    """

    rank: int
    evidence: str
    last_step: int | None = None


class ThrottledRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank whose GPU is throttled by heat or hardware.

    Args:
        rank: Global rank.
        throttled_ratio: Share of the last samples in which it was throttled.
        reasons: NVML's names of the reasons, most frequent first.
        sm_clock_mhz: SM clock in the last sample, MHz; None if unknown.
    """

    rank: int
    throttled_ratio: float
    reasons: tuple[str, ...]
    sm_clock_mhz: int | None = None


class MemoryOfRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rank that uses the most memory.

    Args:
        rank: Global rank.
        used_bytes: Memory in use, bytes.
        where: ``device``: held by tensors on the accelerator; ``process``: resident CPU memory.
    """

    rank: int
    used_bytes: int
    where: Literal["device", "process"]


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overhead of the always-on probes, which the job measures on blocks of steps without them.

    Args:
        ratio: Overhead as a share of the step without probes, median over the ranks; 0.01 is 1 %.
        low: Lower end of the 95 % confidence interval.
        high: Upper end of the interval.
        num_ranks: Ranks that measured it.
    """

    ratio: float
    low: float
    high: float
    num_ranks: int


class WatchReport(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job at one moment. Windows are the last 40 steps that all ranks have reported.

    Args:
        schema: ``distprof.watch/1``.
        distprof_version: Version of distprof that wrote it.
        source: The run directory.
        time_ns: When the watcher looked, ns since the epoch.
        state: ``waiting`` for a first step; ``running``; ``stalled`` if no rank has completed a
            step for long; or how the job ended.
        world_size: World size of the job; None if unknown.
        num_ranks: Number of ranks that have recorded data.
        step: Last step that all ranks have reported; None before the first.
        silent_ns: Time since a rank last reported a step, ns; None before the first.
        step_ns: Step time in the window, ns: the median; on GPU ranks the mean, because their CPUs
            run ahead and wait only now and then.
        usual_step_ns: Median step time of the job before the window, on GPU ranks of means over 20
            steps; None while there are too few steps.
        tokens_per_s: Tokens per second of all ranks in the window; None if not reported.
        own_ratio: Median own time as a share of the step; None if unknown. On GPU ranks a lower
            bound that includes transfers.
        input_ratio: Share of the step that ranks wait for input, median over steps and ranks.
        input_rank: The rank that waits longest for input, if it waits for 1 % of the step or more
            and 20 % longer than the median rank; None otherwise.
        late: Slow ranks, then those most often above the limit; at most 8.
        lost: Ranks that ended or fell silent.
        throttled: Ranks whose GPU is throttled, at most 8.
        memory: The rank that uses the most memory; None if unknown.
        alerts: Alerts that are raised now.
        unknown: What is unknown and why, one sentence each.
        notes: Remarks on files, one sentence each.
        own_known_from: Source of own time: ``cpu`` the CPU time of the training thread,
            ``collectives`` the durations of collectives on the GPU; None if own time is unknown.
        probe_cost: Overhead of the always-on probes; None if it has not been measured.
        gpu_behind_ratio: Share of steps at whose end the GPU had not finished the step before, mean
            over ranks; None if it was not observed.
    """

    schema: str = WATCH_SCHEMA
    distprof_version: str
    source: str
    time_ns: int
    state: JobState
    world_size: int | None
    num_ranks: int
    step: int | None
    silent_ns: int | None
    step_ns: int | None
    usual_step_ns: int | None
    tokens_per_s: float | None
    own_ratio: float | None
    input_ratio: float | None
    input_rank: int | None
    late: tuple[LateRank, ...]
    lost: tuple[LostRank, ...]
    throttled: tuple[ThrottledRank, ...]
    memory: MemoryOfRank | None
    alerts: tuple[Alert, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    own_known_from: Literal["cpu", "collectives"] | None = None
    probe_cost: ProbeCost | None = None
    gpu_behind_ratio: float | None = None
