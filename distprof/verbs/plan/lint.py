"""Holds a layout against the rules of configurations, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from distprof.formats import RenderOptions
from distprof.rules.engine import run_rules
from distprof.sections.table import counted
from distprof.terms import Severity
from distprof.units import format_bytes, format_duration, format_ratio
from distprof.verbs.plan.configuration import ConfigurationFinding, Lint, configured
from distprof.verbs.plan.job_file import JobFile
from distprof.verbs.plan.layout import Layout
from distprof.verbs.plan.question import Question, assumptions

__all__ = ["check_layout", "lint_reporters"]


def check_layout(
    question: Question,
    layout: Layout,
    file: JobFile,
    *,
    version: str = "",
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> Lint:
    """What is to be said against a layout.

    Args:
        question: The model and the cluster.
        layout: That the file means.
        file: Whose configuration it is.
        version: Of distprof.
        limits: Code or name of a rule to limit name to value, as users change them.

    Returns:
        Errors first, then by code.

    Raises:
        UsageError: If a limit is unknown or no finite number.
    """
    result = configured(question, layout)
    findings = sorted(
        run_rules([result], limits).findings,
        key=lambda finding: (-finding.severity.rank, finding.code),
    )
    return Lint(
        version=version,
        source=file.source,
        kind=file.kind,
        layout=layout,
        findings=tuple(
            ConfigurationFinding(
                code=finding.code,
                severity=finding.severity,
                message=finding.message,
                fix=finding.fix,
            )
            for finding in findings
        ),
        estimate=result.estimate,
        not_read=file.not_read,
        assumptions=assumptions(question),
    )


# What is wrong with a configuration, as text, Markdown and JSON ----------------------------------

_FEW = 12


def lint_reporters() -> dict[str, Callable[[Lint, RenderOptions], str]]:
    """Name of a format to what writes it."""
    return {"text": _text, "json": _json, "md": _markdown}


def _verdict(lint: Lint) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in lint.findings)
    others = len(lint.findings) - errors
    if errors:
        return f"This configuration cannot run as it is: {counted(errors, 'error')}."
    if others:
        return f"This configuration can run; {counted(others, 'remark')}."
    return "This configuration can run; nothing is to be said against it."


def _facts(lint: Lint, *, show_all: bool) -> Iterator[str]:
    yield f"{lint.kind} · {lint.layout.text.replace(',', ', ')} · modelled"
    if lint.estimate is not None:
        costs = lint.estimate
        yield (
            f"A step takes {format_duration(costs.step_ns)}, MFU {format_ratio(costs.mfu)},"
            f" {format_bytes(costs.memory.total_bytes)} a GPU."
        )
    if lint.not_read:
        chosen = lint.not_read if show_all else lint.not_read[:_FEW]
        left = len(lint.not_read) - len(chosen)
        more = f" and {left:,} more (--all)" if left else ""
        yield f"Not read: {', '.join(chosen)}{more}."


def _line(finding: ConfigurationFinding) -> str:
    return f"{finding.severity.value} {finding.code}: {finding.message} {finding.fix}"


def _text(lint: Lint, options: RenderOptions) -> str:
    from distprof.documents.text import printed

    return printed(_text_blocks(lint, options), options)


def _text_blocks(lint: Lint, options: RenderOptions) -> Iterator[Any]:
    from rich.text import Text

    from distprof.documents.text import sentence
    from distprof.escape import plain, wrapped

    yield Text(wrapped(plain(_verdict(lint)), options.width), style="bold")
    yield Text()
    for fact in _facts(lint, show_all=options.show_all):
        yield sentence(fact, options.width, style="dim")
    for finding in lint.findings:
        yield Text()
        yield sentence(_line(finding), options.width)


def _markdown(lint: Lint, options: RenderOptions) -> str:
    from distprof.documents.markdown import joined

    return joined(_markdown_blocks(lint, options), show_all=options.show_all)


def _markdown_blocks(lint: Lint, options: RenderOptions) -> Iterator[str]:
    from distprof.documents.markdown import sentence

    yield f"### {sentence(_verdict(lint))}"
    yield from (sentence(fact) for fact in _facts(lint, show_all=options.show_all))
    if lint.findings:
        yield "\n".join(f"- {sentence(_line(finding))}" for finding in lint.findings)


def _json(lint: Lint, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    return msgspec.json.format(msgspec.json.encode(lint), indent=2).decode() + "\n"
