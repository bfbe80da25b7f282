"""What every reporter says about findings: their cost, and the command to run next."""

from __future__ import annotations

import shlex

from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.parts import mean_span_ns, window_word
from distprof.sections.report import Report
from distprof.units import format_duration, format_ratio

__all__ = ["MAX_FINDINGS_SHOWN", "cost_text", "next_commands"]

MAX_FINDINGS_SHOWN = 5
SAME_RATIO = 0.05
"""A simulated gain that is this near to the cost is not worth a second number."""


def cost_text(finding: Finding, report: Report) -> str:
    """What a finding costs, for example ``6.91 ms per step (31.0 %)``; ``–`` when unknown.

    Where the simulated step recovers a different time, the text adds it.
    """
    cost = finding.cost_ns_per_step
    recovered = _recovered_text(finding, report)
    if cost is None:
        return recovered or "–"
    if any(place.startswith("training_log") for place in finding.evidence):
        return _cost_of_iteration(cost, report.training_log.mean_ns)
    text = f"{format_duration(cost)} per {window_word(report)}"
    # Costs are means over ranks, so is what they are a share of; without traces it is simulated
    span = mean_span_ns(report) or report.whatif.replayed_ns
    text = f"{text} ({format_ratio(cost / span)})" if span else text
    return f"{text}, {recovered}" if recovered else text


def _cost_of_iteration(cost: int, iteration_ns: int | None) -> str:
    """Of what a training program's log shows, whose iterations need be no step of a trace."""
    text = f"{format_duration(cost)} per iteration"
    return f"{text} ({format_ratio(cost / iteration_ns)})" if iteration_ns else text


def _recovered_text(finding: Finding, report: Report) -> str:
    """For example ``recovers 4.20 ms (simulated), 1.10 ms after those above``.

    Empty where the cost says the same.
    """
    recovered, cost = finding.recoverable_ns, finding.cost_ns_per_step
    if recovered is None:
        return ""
    left = _remaining_text(finding, recovered)
    if cost is not None and cost == finding.remaining_ns:
        return ""
    if cost is not None and abs(recovered - cost) <= SAME_RATIO * cost:
        return left
    per = f" per {window_word(report)}" if cost is None else ""
    text = f"recovers {format_duration(recovered)}{per} (simulated)"
    return f"{text}, {left}" if left else text


def _remaining_text(finding: Finding, recovered: int) -> str:
    """What the finding still gives after those above; empty where that is the same."""
    remaining = finding.remaining_ns
    if remaining is None or abs(recovered - remaining) <= SAME_RATIO * recovered:
        return ""
    left = format_duration(remaining) if remaining else "nothing"
    return f"{left} after those above"


def next_commands(report: Report, options: RenderOptions) -> tuple[tuple[str, str], ...]:
    """Commands worth running after this report, each with its purpose."""
    commands = []
    if report.findings:
        code = report.findings[0].code
        commands.append((f"distprof rule {shlex.quote(code)}", "what it means and how to fix it"))
    saved = shlex.quote(options.saved_as)
    if options.saved_as and not options.show_all:
        commands.append((f"distprof report {saved} --all", "every finding, rank and kernel"))
    elif not options.saved_as and report.run.source.isprintable():
        source = shlex.quote(report.run.source)
        command = f"distprof analyze {source} --save-report report.json"
        commands.append((command, "keep this report"))
    return tuple(commands)
