"""Rules that say what forbids a layout: one for each kind of objection."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft
from distprof.terms import Confidence
from distprof.verbs.plan.configuration import ConfigurationResult

__all__ = ["drafts"]


def drafts(configuration: ConfigurationResult, kind: str, fix: str) -> Iterator[Draft]:
    """One finding for each objection of a kind.

    Args:
        configuration: The layout.
        kind: As :func:`distprof.verbs.plan.layout.objections` calls it.
        fix: What to do.
    """
    for objection in configuration.objections:
        if objection.kind == kind:
            message = f"{kind}: {objection.message}."
            yield Draft(
                message=message[0].upper() + message[1:],
                fix=fix,
                cost_ns_per_step=None,
                confidence=Confidence.MODELLED,
                evidence=("configuration.objections",),
            )
