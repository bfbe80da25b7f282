"""Holds a layout against the rules of configurations, before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping

from distprof.planning.configuration import ConfigurationFinding, Lint, configured
from distprof.planning.job_file import JobFile
from distprof.planning.layout import Layout
from distprof.planning.question import Question, assumptions
from distprof.rules.engine import run_rules

__all__ = ["check_layout"]


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
