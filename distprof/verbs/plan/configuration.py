"""A layout that somebody is about to launch, held ready for the rules of configurations.

The rules themselves are in ``distprof/verbs/plan/rules``; :mod:`distprof.verbs.plan.lint` runs
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from distprof.rules.base import Evidence
from distprof.terms import Severity, Subject
from distprof.verbs.plan.layout import Layout, Objection, objections
from distprof.verbs.plan.result import Estimate, MemoryParts

if TYPE_CHECKING:
    from distprof.verbs.plan.question import Question

__all__ = [
    "LINT_SCHEMA",
    "ConfigurationFinding",
    "ConfigurationResult",
    "Lint",
    "configured",
]

LINT_SCHEMA = "distprof.plan-lint/1"

_CAN_RUN = frozenset(
    {
        "tensor parallelism leaves the fast domain",
        "sequence too short to share",
        "too few micro-batches",
    }
)
"""Objections to what can run all the same."""


class ConfigurationResult(
    msgspec.Struct, Evidence, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A layout, what is against it, and what it takes; modelled, since nothing has run.

    Args:
        layout: Which.
        objections: What forbids it, memory apart.
        usable_bytes: Memory of a GPU that it may fill.
        memory: Of the fullest GPU; None where it cannot run.
        estimate: What it costs; None where it cannot run.
        larger: With micro-batches twice as large and half as many; None where it holds stages, or
            they do not halve.
        larger_bytes: Memory that takes.
        plain_bytes: Memory with nothing sharded; None where weights are not sharded now.
    """

    subject: ClassVar[Subject] = Subject.CONFIGURATION

    layout: Layout
    objections: tuple[Objection, ...] = ()
    usable_bytes: float
    memory: MemoryParts | None = None
    estimate: Estimate | None = None
    larger: Layout | None = None
    larger_bytes: int | None = None
    plain_bytes: int | None = None


class ConfigurationFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem of a configuration; modelled, since nothing has run.

    Args:
        code: Never reused, for example ``CFG111``.
        severity: An error cannot run.
        message: With the numbers.
        fix: What to do.
    """

    code: str
    severity: Severity
    message: str
    fix: str


class Lint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found in a configuration.

    Args:
        schema: Of this document.
        version: Of distprof.
        source: The file.
        kind: Whose configuration it is.
        layout: That it means.
        findings: Errors first.
        estimate: What the layout costs; None where it cannot run.
        not_read: Keys of which nothing was taken.
        assumptions: What the estimate rests on.
    """

    schema: str = LINT_SCHEMA
    version: str
    source: str
    kind: str
    layout: Layout
    findings: tuple[ConfigurationFinding, ...]
    estimate: Estimate | None
    not_read: tuple[str, ...]
    assumptions: tuple[str, ...]


def configured(question: Question, layout: Layout) -> ConfigurationResult:
    """What rules judge a layout by.

    Args:
        question: The model and the cluster.
        layout: Which; memory and times are left out where it cannot run.
    """
    from distprof.verbs.plan.estimate import estimate, footprint

    against = tuple(
        objections(
            layout,
            question.model,
            question.cluster,
            batch=question.batch,
            sequence=question.sequence,
        )
    )
    result = ConfigurationResult(
        layout=layout, objections=against, usable_bytes=question.usable_bytes
    )
    if any(objection.kind not in _CAN_RUN for objection in against):
        return result
    larger = _larger(layout)
    plain = msgspec.structs.replace(layout, sharding="ddp", shards=0)
    return msgspec.structs.replace(
        result,
        memory=footprint(question, layout),
        estimate=estimate(question, layout),
        larger=larger,
        larger_bytes=None if larger is None else footprint(question, larger).total_bytes,
        plain_bytes=footprint(question, plain).total_bytes if layout.zero_stage == 3 else None,
    )


def _larger(layout: Layout) -> Layout | None:
    if layout.pp > 1 or layout.micro_batches % 2:
        return None
    return msgspec.structs.replace(
        layout, micro_batch=2 * layout.micro_batch, micro_batches=layout.micro_batches // 2
    )
