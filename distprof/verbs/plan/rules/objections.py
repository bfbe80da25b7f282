"""Rules on layouts that cannot or should not run: one for each kind of objection.

:func:`distprof.verbs.plan.layout.objections` finds the objections; ``objections.toml`` defines the
code, the page and the fix of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from distprof.bounds import table_beside
from distprof.escape import fitting
from distprof.rules.base import Draft, Rule, rule
from distprof.terms import Confidence, Severity
from distprof.units import capitalized
from distprof.verbs.plan import ConfigurationResult


def _row(*, code: str, name: str, severity: str, kind: str, fix: str, page: str) -> Rule:
    """Build the rule on one kind of objection."""

    def check(configuration: ConfigurationResult) -> Iterator[Draft]:
        for objection in configuration.objections:
            if objection.kind == kind:
                yield Draft(
                    headline=fitting(
                        f"{capitalized(kind)}: {objection.message}", f"Layout: {objection.message}"
                    ),
                    message="The configuration alone shows it.",
                    fix=fix,
                    confidence=Confidence.MODELLED,
                    evidence=("configuration.objections",),
                )

    check.__name__, check.__doc__ = name, page
    made = rule(code, Severity(severity), costs_time=False)(check)
    return replace(made, shared=_TABLE["shared"])


_TABLE = table_beside(__package__, "objections.toml")
RULES = tuple(_row(**each) for each in _TABLE["rule"])
