"""A baseline for comparison with later runs: small JSON, to be reviewed and kept in git."""

from __future__ import annotations

import msgspec

from distprof.artefacts.summary_file import Fingerprint, StepParts

BASELINE_SCHEMA = "distprof.baseline/1"


class BaselineSession(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats that were measured one after the other and accepted together."""

    git_commit: str = ""  # Commit of the code that ran; empty if unknown.
    created_ns: int  # Time of creation, ns since the epoch.
    # Metric to one value per repeat (of ``step_time`` the median step, ns), in order of time. A
    # repeat without the metric is left out of its list.
    values: dict[str, tuple[float, ...]]
    # Breakdown of the traced step, mean of the repeats; None without traces. It explains later
    # losses.
    parts: StepParts | None = None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that the team has accepted: the check shows it but does not fail."""

    metric: str  # Name of the metric.
    up_to: float  # Accepted loss in terms of the metric: a ratio (0.08 for 8 %) or a difference.
    reason: str  # Reason, for readers of the file.
    until_ns: int | None = None  # End of validity, ns since the epoch; None for no end.
    git_commit: str = ""  # The commit that introduced it; empty if unknown.


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True):
    """The reference that ``distprof check`` compares runs with."""

    schema: str = BASELINE_SCHEMA  # ``distprof.baseline/1``.
    distprof_version: str  # Version of the writer.
    fingerprint: Fingerprint  # The properties that comparable runs must share with it.
    # Ranks of the smaller size, the reference of the efficiency; None without a smaller size.
    small_world_size: int | None = None
    window: int = 8  # Number of sessions to keep; new sessions replace the oldest.
    sessions: tuple[BaselineSession, ...]  # Accepted sessions, oldest first.
    acknowledged: tuple[Acknowledged, ...] = ()  # Accepted losses.
