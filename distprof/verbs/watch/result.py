"""What a watcher knows of a job at one moment, and the alerts that it raises."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from distprof.formats import Displayed
from distprof.units import capitalized, name_ranks

__all__ = [
    "ALERT_SCHEMA",
    "WATCH_SCHEMA",
    "Alert",
    "JobState",
    "LateRank",
    "LostRank",
    "MemoryOfRank",
    "ProbeCost",
    "ThrottledRank",
    "WatchReport",
    "sentence_on",
]

WATCH_SCHEMA = "distprof.watch/1"
ALERT_SCHEMA = "distprof.alert/1"

JobState = Literal["waiting", "running", "stalled", "completed", "failed", "interrupted"]


class Alert(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that began or ended, as it is delivered.

    Args:
        schema: ``distprof.alert/1``.
        distprof_version: Version of the writer.
        state: ``raised`` it began; ``cleared`` it ended.
        kind: As ``--alert`` names it, for example ``slow-rank``.
        message: One sentence.
        ranks: Ranks that it is about; empty where it is about the job.
        step: Last step known, None before the first.
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
        """The alert that it is over.

        Args:
            ranks: For these of its ranks; none where it is about the job.
            step: Last step known.
            time_ns: When that was noticed, ns since the epoch.
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
    """Who, and what of them; the job where there is no rank."""
    who = capitalized(name_ranks(sorted(ranks))) if ranks else "The job"
    return f"{who}: {words}"


class LateRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that needs more own time than its peers.

    Args:
        rank: Global rank.
        own_ns: Its own time per step, median of the window, ns. On GPU ranks at least this, with
            transfers.
        late_ns: How much more that is than the median of its peers, median of the window, ns. On
            GPU ranks at least this much.
        late_ratio: The same as a share of its peers' own time.
        num_above: Steps of the window in which it was above the limit.
        is_slow: Whether they are enough to call it slow.
        cause: ``no_cpu`` it waits for a CPU; ``input`` it waits for its data; ``more_work`` it runs
            longer; most of the excess decides. On GPU ranks ``device`` where neither of the first
            two explains half of it: the GPU works for longer, or its work is launched later.
        late_most_ns: On GPU ranks, the most that ``late_ns`` can be; None where it is exact.
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
        evidence: One sentence.
        last_step: Last step that it completed, None before the first.
    """

    rank: int
    evidence: str
    last_step: int | None = None


class ThrottledRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank whose GPU is slowed down by heat or hardware.

    Args:
        rank: Global rank.
        throttled_ratio: Share of the last samples in which it was.
        reasons: NVML's names, most frequent first.
        sm_clock_mhz: Clock in the last sample, None where unknown.
    """

    rank: int
    throttled_ratio: float
    reasons: tuple[str, ...]
    sm_clock_mhz: int | None = None


class MemoryOfRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rank that uses most memory.

    Args:
        rank: Global rank.
        used_bytes: Bytes.
        where: ``device``: held by tensors on the accelerator; ``process``: resident on the host.
    """

    rank: int
    used_bytes: int
    where: Literal["device", "process"]


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the always-on probes cost, measured by the job on blocks of steps without them.

    Args:
        ratio: Of the step without them; 0.01 is one percent. Medians over the ranks.
        low: Lower end of the 95 % confidence interval.
        high: Upper end.
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
        distprof_version: Version of the writer.
        source: The run directory.
        time_ns: When it was looked at, ns since the epoch.
        state: ``waiting`` for a first step; ``running``; ``stalled`` no rank has a new step for
            long; or how the job ended.
        world_size: Ranks of the job, None where unknown.
        num_ranks: Ranks that have recorded something.
        step: Last step that all ranks have reported, None before the first.
        silent_ns: Since when no rank has reported a step, ns; None before the first.
        step_ns: Median step of the window, ns.
        usual_step_ns: Median of the job's own steps before the window; None while they are few.
        tokens_per_s: Tokens of all ranks per second in the window; None where not reported.
        own_ratio: Median own time as a share of the step; None where it is not known. On GPU ranks
            at least this, and with transfers.
        input_ratio: Share of the step that ranks wait for input, median over steps and ranks.
        input_rank: The rank that waits longest, if that is 1 % of the step and a fifth longer than
            most; None otherwise.
        late: Ranks that are slow, or were above the limit most often; most first, 8 at most.
        lost: Ranks that ended or fell silent.
        throttled: Ranks whose GPU is slowed down, 8 at most.
        memory: The rank that uses most; None where unknown.
        alerts: Alerts that are raised now.
        unknown: What cannot be known here, one sentence each.
        notes: Remarks on files, one sentence each.
        own_known_from: What own time is known from: ``cpu`` the time of the training thread,
            ``collectives`` the time of collectives on the GPU; None where it is not known.
        probe_cost: What the always-on probes cost; None until it is measured, or where it is not.
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
