"""A layout before launch: the evidence that the rules on configurations check.

The rules are in ``distprof/verbs/plan/rules``; :mod:`distprof.verbs.plan.lint` runs them.
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

LINT_SCHEMA = "distprof.plan-lint/1"

_CAN_RUN = frozenset(
    {
        "tensor parallelism leaves the fast domain",
        "sequence too short to share",
        "too few micro-batches",
    }
)
"""Objections to layouts that can still run."""


class ConfigurationResult(
    msgspec.Struct, Evidence, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A layout, the objections to it and its costs. All are modelled: no step has run."""

    subject: ClassVar[Subject] = Subject.CONFIGURATION

    layout: Layout  # The layout.
    objections: tuple[Objection, ...] = ()  # Reasons against it, except memory.
    usable_bytes: float  # Memory of a GPU that the layout may fill.
    memory: MemoryParts | None = None  # Memory of the fullest GPU; None if the layout cannot run.
    estimate: Estimate | None = None  # Its costs; None if it cannot run.
    # The same layout with half as many micro-batches of twice the size; None with pipeline stages,
    # or if the number of micro-batches is odd.
    larger: Layout | None = None
    larger_bytes: int | None = None  # Memory that ``larger`` takes.
    # Memory without any sharding; None if the layout does not shard weights.
    plain_bytes: int | None = None


class ConfigurationFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem of a configuration. It is modelled: no step has run."""

    code: str  # Code of the rule, never reused, for example ``CFG111``.
    severity: Severity  # ``error`` if the configuration cannot run.
    message: str  # The problem, with its numbers.
    fix: str  # How to fix it.


class Lint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Problems and costs of a configuration."""

    schema: str = LINT_SCHEMA  # Schema id of this document.
    version: str  # Version of distprof.
    source: str  # The configuration file.
    kind: str  # Program that the configuration is for.
    layout: Layout  # The layout that it describes.
    findings: tuple[ConfigurationFinding, ...]  # Problems, errors first.
    estimate: Estimate | None  # Costs of the layout; None if it cannot run.
    not_read: tuple[str, ...]  # Keys that distprof does not use.
    assumptions: tuple[str, ...]  # Assumptions of the estimate, one sentence each.


def configured(question: Question, layout: Layout) -> ConfigurationResult:
    """The evidence by which the rules judge a layout; no memory and times if it cannot run."""
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
