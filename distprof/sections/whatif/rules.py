"""Rules about whatif."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distprof.escape import fitting
from distprof.rules.base import Draft, Limit, Limits, advice, rule, worth
from distprof.sections.capture import CaptureResult
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.shares import has_all_members
from distprof.sections.stragglers import StragglersResult
from distprof.sections.whatif import Scenario, WhatIfResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration

CHANGES = ("late ranks", "overlap", "launch-gaps", "sync-calls", "input", "stage-imbalance")
"""Changes that the rule may name, as keys of scenarios. It names neither single ranks, which other
rules judge, nor bounds, such as transfers that take no time."""

_LEADS = {"overlap": "Communication runs alone where it could overlap. "}


@rule(
    "STR110",
    Severity.WARNING,
    min_step_ratio=worth(0.05),
    launch_ratio=Limit(0.15, "the same for late launches, which a profiler causes, too"),
)
def unexplained_loss(
    whatif: WhatIfResult,
    perturbation: PerturbationResult,
    stragglers: StragglersResult,
    capture: CaptureResult,
    limits: Limits,
) -> Iterator[Draft]:
    """A change that can be made, such as ranks that keep up with each other, would shorten the
    simulated step by 5 % or more, and no other finding names it.
    """
    step = whatif.replayed_ns
    if whatif.source != "traces" or not step:
        return
    for scenario in whatif.without:
        least = limits["launch_ratio" if scenario.what == "launch-gaps" else "min_step_ratio"]
        gain, min_gain_ns = scenario.recoverable_ns, round(least * step)
        sure = perturbation.surely_ns(gain) if scenario.what == "launch-gaps" else gain
        if sure < min_gain_ns or scenario.what not in CHANGES:
            continue
        if scenario.what == "overlap" and not has_all_members(capture):
            continue  # what looks like transfer may be waiting for a rank that was not recorded
        yield Draft(
            headline=fitting(
                f"If {scenario.title}, a step would save {format_duration(gain)}",
                f"One change would save {format_duration(gain)} of each step",
            ),
            message=(
                f"{_lead(stragglers, scenario)}The gain is simulated; no other finding names the "
                "reason."
            ),
            fix=advice("unexplained-loss", scenario.what),
            cost_ns_per_step=gain,
            confidence=Confidence.MODELLED,
            evidence=("whatif.without",),
            without=scenario.what,
            last_resort_ns=min_gain_ns,
        )


def _lead(stragglers: StragglersResult, scenario: Scenario) -> str:
    """Opening sentence: who costs the others most, in how many of the steps."""
    if scenario.what != "late ranks":
        return _LEADS.get(scenario.what, "")
    times = Counter(step.rank for step in stragglers.steps if step.rank is not None)
    if not times or len(stragglers.steps) < 2:
        return ""
    (rank, most), *others = times.most_common()
    steps = f"{most} of {len(stragglers.steps)} steps"
    if others:
        return (
            f"{len(times)} ranks are the latest in one step or another, rank {rank} most often "
            f"({steps}). "
        )
    return f"Rank {rank} is the latest in {steps}. "
