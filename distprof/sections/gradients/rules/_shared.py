"""Helpers shared by the rules on gradients."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.gradients.result import GradientGroup, GradientsResult
from distprof.terms import Confidence
from distprof.units import format_bytes

NO_BACKWARD = "the trace lacks the launches that show when backward begins"

LATE_RATIO = 0.9
"""Share of backward before the first bucket above which hardly any overlap is possible."""


def gradient_groups(gradients: GradientsResult) -> tuple[GradientGroup, ...]:
    """Axes along which gradients are reduced; empty if nothing in the trace marks DDP.

    Raises:
        InsufficientEvidenceError: If DDP is used but its collectives cannot be identified.
    """
    if not gradients.groups and gradients.unavailable:
        raise InsufficientEvidenceError(gradients.unavailable[0])
    return gradients.groups


def exposed_once_ns(group: GradientGroup) -> int:
    """Exposed time per step of the one reduction that an update needs."""
    return group.exposed_ns_per_step - group.redundant_ns_per_step


def is_late(group: GradientGroup) -> bool:
    """Whether backward is almost over when the first bucket is ready.

    Raises:
        InsufficientEvidenceError: If the beginning of backward is unknown.
    """
    if group.backward_ns is None or group.before_first_ns is None:
        raise InsufficientEvidenceError(NO_BACKWARD)
    return group.before_first_ns >= LATE_RATIO * group.backward_ns


def name_of(group: GradientGroup) -> str:
    """For example ``102 MB of float32 gradients over 2 nodes``."""
    nodes = f" over {group.num_nodes} nodes" if (group.num_nodes or 1) > 1 else ""
    words = " and ".join(word for word in group.dtypes if word)
    kind = f" of {words} gradients" if words else " of gradients"
    return f"{format_bytes(group.bytes)}{kind}{nodes}"


def confidence_of(group: GradientGroup) -> Confidence:
    """Measured if the exposed time excludes waiting for late ranks, otherwise inferred."""
    return Confidence.MEASURED if group.is_split else Confidence.INFERRED


def exposed_label(group: GradientGroup) -> str:
    """The name of the group's exposed time in a message."""
    if group.is_split:
        return "exposed transfer"
    return "exposed communication (including waiting for late ranks)"
