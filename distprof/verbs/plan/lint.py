"""Checks a configuration with rules before the job is launched, and shows the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from distprof.documents.ci import Case, Cases
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.formats import RenderOptions
from distprof.rules.engine import run_rules
from distprof.rules.registry import all_rules
from distprof.sections.table import counted
from distprof.terms import Severity
from distprof.units import format_bytes, format_duration, format_ratio
from distprof.verbs.plan.estimate import estimate, footprint
from distprof.verbs.plan.job_file import JobFile
from distprof.verbs.plan.layout import Layout, Question, assumptions, objections
from distprof.verbs.plan.result import LINT_SCHEMA, ConfigurationFinding, ConfigurationResult, Lint
from distprof.version import __version__

_CAN_RUN = frozenset(
    {
        "tensor parallelism leaves the fast domain",
        "sequence too short to share",
        "too few micro-batches",
    }
)
"""Objections to layouts that can still run."""


def check_layout(
    question: Question,
    layout: Layout,
    file: JobFile,
    *,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> Lint:
    """Check a layout with the rules on configurations; errors first, then by code."""
    result = configured(question, layout)
    findings = sorted(
        run_rules([result], limits).findings,
        key=lambda finding: (-finding.severity.rank, finding.code),
    )
    return Lint(
        version=__version__,
        source=file.source,
        kind=file.kind,
        layout=layout,
        findings=tuple(
            msgspec.convert(finding, ConfigurationFinding, from_attributes=True)
            for finding in findings
        ),
        estimate=result.estimate,
        not_read=file.not_read,
        assumptions=assumptions(question),
    )


def configured(question: Question, layout: Layout) -> ConfigurationResult:
    """The evidence by which the rules judge a layout; no memory and times if it cannot run."""
    batch, sequence = question.batch, question.sequence
    found = objections(layout, question.model, question.cluster, batch=batch, sequence=sequence)
    result = ConfigurationResult(
        layout=layout, objections=tuple(found), usable_bytes=question.usable_bytes
    )
    if any(objection.kind not in _CAN_RUN for objection in found):
        return result
    larger = None
    if layout.pp == 1 and layout.micro_batches % 2 == 0:
        size, number = 2 * layout.micro_batch, layout.micro_batches // 2
        larger = msgspec.structs.replace(layout, micro_batch=size, micro_batches=number)
    plain = msgspec.structs.replace(layout, sharding="ddp", shards=0)
    return msgspec.structs.replace(
        result,
        memory=footprint(question, layout),
        estimate=estimate(question, layout),
        larger=larger,
        larger_bytes=None if larger is None else footprint(question, larger).total_bytes,
        plain_bytes=footprint(question, plain).total_bytes if layout.zero_stage == 3 else None,
    )


_FEW = 12


def _verdict(lint: Lint) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in lint.findings)
    others = len(lint.findings) - errors
    if errors:
        return f"This configuration cannot run as it is: {counted(errors, 'error')}."
    if others:
        return f"This configuration can run: {counted(others, 'remark')}."
    return "This configuration can run. No problems found."


def _facts(lint: Lint, *, show_all: bool) -> Iterator[str]:
    yield f"{lint.kind} · {lint.layout.text.replace(',', ', ')} · modelled"
    if lint.estimate is not None:
        costs = lint.estimate
        yield (
            f"A step takes {format_duration(costs.step_ns)}, MFU {format_ratio(costs.mfu)},"
            f" {format_bytes(costs.memory.total_bytes)} per GPU."
        )
    if lint.not_read:
        chosen = lint.not_read if show_all else lint.not_read[:_FEW]
        left = len(lint.not_read) - len(chosen)
        more = f" and {left:,} more (--all)" if left else ""
        yield f"Keys not read: {', '.join(chosen)}{more}."


def _page(lint: Lint, options: RenderOptions) -> Page:
    origin, *facts = _facts(lint, show_all=options.show_all)
    return Page(
        verdict=_verdict(lint),
        origin=origin,
        facts=tuple(facts),
        points=tuple(
            f"{finding.severity.value} {finding.code}: {finding.headline}. {finding.message} "
            f"{finding.fix}"
            for finding in lint.findings
        ),
    )


def _cases(lint: Lint, _: RenderOptions) -> Cases:
    """A test case per problem; a case fails if the problem keeps the configuration from running."""
    names = {rule.code: rule.name for rule in all_rules()}
    return Cases(
        command="distprof plan --lint",
        version=lint.version,
        source=lint.source,
        verdict=_verdict(lint),
        cases=tuple(
            Case(
                code=finding.code,
                name=names.get(finding.code, ""),
                message=finding.headline,
                detail=finding.message,
                severity=finding.severity,
                outcome="failed" if finding.severity is Severity.ERROR else "passed",
                fix=finding.fix,
            )
            for finding in lint.findings
        ),
        is_source_file=True,
    )


LINT = Document(
    kind=Lint,
    schema=LINT_SCHEMA,
    noun="a plan",
    title="distprof plan --lint",
    fix="make it again with: distprof plan --lint FILE --format json",
    page=_page,
    cases=_cases,
)
