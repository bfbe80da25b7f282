"""The first lines of a report on a log of operations, which holds no trace."""

from __future__ import annotations

from distprof.analyzers.whatif.analysis import WhatIfResult
from distprof.analyzers.whatif.uneven import Cause, CauseKind, causes_of, limiting_stage
from distprof.report.escape import short_ranks
from distprof.report.model import Report
from distprof.units import format_duration, format_ratio

__all__ = ["operations_verdict"]

MIN_SLOWDOWN = 1.03
MIN_SHARE = 0.25
NEARLY_ALL = 0.8

_ACTIONS = {
    CauseKind.WORKERS: "take their machines out and test them",
    CauseKind.STAGES: "move layers from it to the others",
    CauseKind.DATA: "give micro-batches sequences of equal work",
    CauseKind.STALLS: "look for stalls such as garbage collection and other work on the hosts",
    CauseKind.TRANSFERS: "look at the network of its members",
}


def operations_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    whatif = report.whatif
    if whatif.source != "operations" or whatif.slowdown is None:
        return None
    if whatif.slowdown < MIN_SLOWDOWN:
        beyond = format_ratio(max(0.0, whatif.slowdown - 1))
        line = f"Operations are even: steps take {beyond} longer than if all were equally long."
        return line, (_model_sentence(whatif),)
    causes = causes_of(whatif, MIN_SHARE)
    beyond = format_ratio(whatif.slowdown - 1)
    cause = _subject(whatif, causes[0]) if causes else "no single cause explains it"
    action = f": {_ACTIONS[causes[0].kind]}" if causes else ""
    line = f"Steps take {beyond} longer than with even operations; {cause}{action}."
    why = (_shares_sentence(whatif), _steps_sentence(whatif), _model_sentence(whatif))
    return line, tuple(sentence for sentence in why if sentence)


def _subject(whatif: WhatIfResult, cause: Cause) -> str:
    if cause.kind is CauseKind.WORKERS:
        ranks = cause.scenario.ranks
        plural = "" if len(ranks) == 1 else "s"
        named = f"rank{plural} {short_ranks(ranks)}"
        return f"{named} explain{'' if plural else 's'} {_part(cause.share)}"
    if cause.kind is CauseKind.STAGES:
        longest = limiting_stage(whatif)
        named = "an uneven pipeline" if longest is None else f"stage {longest.stage}"
        return f"{named} explains {_part(cause.share)}"
    if cause.kind is CauseKind.DATA:
        return f"unequal sequences explain {_part(cause.share)}"
    if cause.kind is CauseKind.TRANSFERS:
        return f"{cause.scenario.what.removeprefix('kind ')} explains {_part(cause.share)}"
    return f"micro-batches that vary without a pattern explain {_part(cause.share)}"


def _part(share: float) -> str:
    """How much of the slow-down, in words: causes overlap, so that a large part is all."""
    return "it" if share >= NEARLY_ALL else f"{format_ratio(share)} of it"


def _shares_sentence(whatif: WhatIfResult) -> str:
    """M_S and M_W in words."""
    parts = []
    if whatif.m_s is not None:
        parts.append(f"the last pipeline stage explains {_share(whatif.m_s)}")
    if whatif.m_w is not None:
        parts.append(f"the slowest 3 % of the workers {_share(whatif.m_w)}")
    if not parts:
        return ""
    text = ", ".join(parts) + " of the slow-down (shares overlap, and may exceed 100 %)."
    return text[0].upper() + text[1:]


def _share(share: float) -> str:
    return format_ratio(share) if share >= 0 else "nothing"


def _steps_sentence(whatif: WhatIfResult) -> str:
    if not whatif.steps or whatif.ideal_ns is None:
        return ""
    worst = whatif.steps[0]
    return (
        f"An ideal step takes {format_duration(whatif.ideal_ns)}; the slowest, step "
        f"{worst.step:,}, {format_ratio(worst.slowdown - 1)} longer."
    )


def _model_sentence(whatif: WhatIfResult) -> str:
    if whatif.model_error_ratio is None:
        return ""
    error = format_ratio(abs(whatif.model_error_ratio))
    way = "shorter" if whatif.model_error_ratio < 0 else "longer"
    return (
        f"The simulated step is {error} {way} than the measured one: what was launched late is "
        "left out."
    )
