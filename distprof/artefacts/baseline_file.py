"""A baseline: what later runs are compared with. Small JSON that people review and git keeps."""

from __future__ import annotations

import msgspec

from distprof.artefacts.summary_file import Fingerprint, StepParts

__all__ = ["BASELINE_SCHEMA", "Acknowledged", "BaselineFile", "BaselineSession"]

BASELINE_SCHEMA = "distprof.baseline/1"


class BaselineSession(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats that were measured one after the other and accepted together.

    Args:
        git_commit: Of the code that ran; empty where unknown.
        created_ns: When, ns since the epoch.
        values: Metric to one value per repeat (of ``step_time`` the median step, ns), in order of
            time. A repeat without the metric is left out of its list.
        parts: Where the traced step went, mean of the repeats; None without traces. It explains a
            loss later.
    """

    git_commit: str = ""
    created_ns: int
    values: dict[str, tuple[float, ...]]
    parts: StepParts | None = None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that somebody accepts for a while: it is shown, and fails nothing.

    Args:
        metric: Which.
        up_to: Accepted loss, in the metric's own terms: 0.08 for 8 % of a ratio, or the difference.
        reason: Why, for whoever reads the file.
        until_ns: End of its validity, ns since the epoch; None for no end.
        git_commit: The commit that brought it; empty where unknown.
    """

    metric: str
    up_to: float
    reason: str
    until_ns: int | None = None
    git_commit: str = ""


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate compares with.

    Args:
        schema: ``distprof.baseline/1``.
        distprof_version: Of the writer.
        fingerprint: What a run must have in common with it.
        small_world_size: Ranks of the smaller size, of which the efficiency is; None without one.
        window: Sessions that are kept; older ones fall out as new ones are accepted.
        sessions: Oldest first.
        acknowledged: Losses that are accepted.
    """

    schema: str = BASELINE_SCHEMA
    distprof_version: str
    fingerprint: Fingerprint
    small_world_size: int | None = None
    window: int = 8
    sessions: tuple[BaselineSession, ...]
    acknowledged: tuple[Acknowledged, ...] = ()
