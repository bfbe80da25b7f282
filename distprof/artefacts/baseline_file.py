"""A baseline for comparison with later runs: small JSON, to be reviewed and kept in git."""

from __future__ import annotations

import msgspec

from distprof.artefacts.summary_file import Fingerprint, StepParts

BASELINE_SCHEMA = "distprof.baseline/1"


class BaselineSession(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats that were measured one after the other and accepted together.

    Args:
        git_commit: Commit of the code that ran; empty if unknown.
        created_ns: Time of creation, ns since the epoch.
        values: Metric to one value per repeat (of ``step_time`` the median step, ns), in order of
            time. A repeat without the metric is left out of its list.
        parts: Breakdown of the traced step, mean of the repeats; None without traces. It explains
            later losses.
    """

    git_commit: str = ""
    created_ns: int
    values: dict[str, tuple[float, ...]]
    parts: StepParts | None = None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that the team has accepted: the check shows it but does not fail.

    Args:
        metric: Name of the metric.
        up_to: Accepted loss in terms of the metric: a ratio (0.08 for 8 %) or a difference.
        reason: Reason, for readers of the file.
        until_ns: End of validity, ns since the epoch; None for no end.
        git_commit: The commit that introduced it; empty if unknown.
    """

    metric: str
    up_to: float
    reason: str
    until_ns: int | None = None
    git_commit: str = ""


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True):
    """The reference that ``distprof check`` compares runs with.

    Args:
        schema: ``distprof.baseline/1``.
        distprof_version: Version of the writer.
        fingerprint: The properties that comparable runs must share with it.
        small_world_size: Ranks of the smaller size, the reference of the efficiency; None without a
            smaller size.
        window: Number of sessions to keep; new sessions replace the oldest.
        sessions: Accepted sessions, oldest first.
        acknowledged: Accepted losses.
    """

    schema: str = BASELINE_SCHEMA
    distprof_version: str
    fingerprint: Fingerprint
    small_world_size: int | None = None
    window: int = 8
    sessions: tuple[BaselineSession, ...]
    acknowledged: tuple[Acknowledged, ...] = ()
