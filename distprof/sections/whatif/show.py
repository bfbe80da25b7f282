"""How long the simulated step takes without each cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distprof.bounds import table_beside
from distprof.escape import few_ranks
from distprof.sections.base import VerdictText
from distprof.sections.job.show import mesh_text
from distprof.sections.parts import window_word
from distprof.sections.stragglers.show import culprits
from distprof.sections.table import Bar, Column, TableView, counted, first_rows, rows_table
from distprof.sections.time.show import dominant_part
from distprof.sections.whatif import (
    Cause,
    CauseKind,
    Scenario,
    WhatIfResult,
    causes_of,
    limiting_stage,
)
from distprof.terms import StepSource
from distprof.units import capitalized, fill, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

_TABLE = table_beside(__package__, "show.toml")
MAX_SHOWN = 10
SMALL_RATIO = 0.001

MIN_GAIN_RATIO = 0.01
"""A simulated gain below this share of the step is not worth a sentence."""

_WITHOUT = {
    "exposed_transfer": "exposed transfer",
    "exposed_copy": "copies",
    "exposed_p2p_wait": "stage-imbalance",
    "idle_host": "launch-gaps",
    "idle_sync": "sync-calls",
    "idle_input": "input",
    "idle_pause": "cpu-pauses",
}
"""Part of the step to the scenario without it."""

_PARTLY = ("axis ", "small collectives", "collectives ")
"""Scenarios that are part of others."""

_PART_OF_KIND = {"compute": "computation", "transfer": "exposed_transfer", "wait": "exposed_wait"}
"""Kind of operations to the part of a step that has the same colour."""


def plan_sentence(report: Report) -> str:
    """How long the step takes after each repair of the plan."""
    plan = report.plan
    if not plan.repairs or plan.step_ns is None:
        return ""
    after = " → ".join(f"{format_duration(r.step_ns)} ({r.done})" for r in plan.repairs)
    return (
        f"Plan: {format_duration(plan.step_ns)} → {after}. The {window_word(report)} is "
        f"simulated{plan_basis(report)}."
    )


def plan_promise(report: Report) -> str:
    """The step before and after the whole plan; empty without a plan."""
    plan = report.plan
    if not plan.repairs or plan.step_ns is None:
        return ""
    before, after = format_duration(plan.step_ns), format_duration(plan.repairs[-1].step_ns)
    return f"{before} → {after} per {window_word(report)}, simulated"


def plan_basis(report: Report) -> str:
    """What the simulation rests on, for example ``, from the middle 16 of 512 steps``."""
    off = report.whatif.model_error_ratio
    error = ""
    if report.whatif.source == "operations":
        error = ", with operations launched as late as measured"
    elif off is not None and abs(off) >= SMALL_RATIO:
        error = f", {format_ratio(abs(off))} off the measured one"
    return f"{_sample(report.whatif)}{error}"


def _sample(result: WhatIfResult) -> str:
    """For example ``, from the middle 16 of 512 steps``; empty if all steps are simulated."""
    if not result.num_left_out or result.num_steps is None:
        return ""
    whole = result.num_steps + result.num_left_out
    return f", from the middle {result.num_steps} of {whole} steps"


def gain_sentence(report: Report) -> str:
    """How long the step would take without the dominant loss, if there is no plan."""
    dominant = dominant_part(report)
    if dominant is None or report.plan.repairs:
        return ""
    key = _WITHOUT.get(dominant.key, "")
    if dominant.key == "exposed_wait":
        late = culprits(report)
        key = f"rank {late[0].rank}" if late else "late ranks"
    result = report.whatif
    found = next((scenario for scenario in result.without if scenario.what == key), None)
    if found is None or not result.replayed_ns or result.model_error_ratio is None:
        return ""
    if found.recoverable_ns < MIN_GAIN_RATIO * result.replayed_ns:
        return ""
    less, error = found.recoverable_ns / result.replayed_ns, abs(result.model_error_ratio)
    taken = {"found": found, "replayed": result.replayed_ns, "less": less, "error": error}
    return fill(_TABLE["gain"], step=window_word(report), **taken)


def whatif_table(report: Report, *, show_all: bool) -> TableView | None:
    """Scenarios by the time that they recover."""
    result = report.whatif
    if result.source != "traces" or not result.without or not result.replayed_ns:
        return None
    replayed = result.replayed_ns
    worth = result.without if show_all else _worth_showing(result.without, replayed)
    shown, more = first_rows(worth, MAX_SHOWN, show_all=show_all, note="and {} with --all")
    notes = [*more]
    if result.model_error_ratio is not None and result.num_steps is not None:
        steps = f"{counted(result.num_steps, 'step')}{_sample(result)}"
        notes.append(fill(_TABLE["error"], error=abs(result.model_error_ratio), steps=steps))
    if result.slowdown is not None:
        text = f"the step takes {result.slowdown:.3f} times as long as with identical ranks"
        slowest = result.workers[:1]
        if result.m_w is not None and slowest:
            text += fill(_TABLE["slowest"], rank=slowest[0].rank, share=result.m_w)
        if result.m_s is not None:
            text += f", the last stage {format_ratio(result.m_s)}"
        notes.append(text)
    return rows_table(
        "What if",
        (
            Column("without", "what", left=True),
            Column(window_word(report), "step_ns"),
            Column("recovers", "recoverable_ns"),
            Column("share", lambda scenario: scenario.recoverable_ns / replayed, form="ratio"),
            Column("if", "title", left=True, wrap=True, wide_only=True),
        ),
        shown,
        caption=f"{window_word(report)} simulated without each cause; gains do not add up",
        notes=tuple(notes),
    )


def _worth_showing(without: tuple[Scenario, ...], replayed_ns: int) -> tuple[Scenario, ...]:
    """Scenarios that recover time; of several that recover the same time, the broadest."""
    by_gain: dict[int, Scenario] = {}
    for scenario in without:
        known = by_gain.setdefault(scenario.recoverable_ns, scenario)
        if known.what.startswith(_PARTLY) and not scenario.what.startswith(_PARTLY):
            by_gain[scenario.recoverable_ns] = scenario
    return tuple(s for gain, s in by_gain.items() if gain >= SMALL_RATIO * replayed_ns)


def path_table(report: Report, *, show_all: bool) -> TableView | None:
    """The critical path by rank and class."""
    result = report.whatif
    if result.source != "traces":
        return None
    shown = result.path if show_all else result.path[:MAX_SHOWN]
    left_out = len(result.path) - len(shown)
    return rows_table(
        "Critical path",
        (
            Column("rank", lambda s: "several" if s.rank is None else str(s.rank), left=True),
            Column("what", "kind", left=True),
            Column("of", "name", left=True, stretch=True),
            Column("time", "ns_per_step"),
            Column("share", "share_ratio"),
            Column(
                "",
                lambda s: Bar(ratio=s.share_ratio, key=_PART_OF_KIND.get(s.kind, "idle_host")),
                left=True,
            ),
        ),
        shown,
        caption=f"operations that the end of the {window_word(report)} waits for, mean",
        notes=(f"and {left_out} smaller ones with --all",) if left_out else (),
    )


# Slowdown of a logged job by stage, kind of operation and worker --------------------------------

MAX_KINDS_SHOWN = 4
MAX_WORKERS_SHOWN = 4
MAX_STAGES_SHOWN = 16


def slowdown_table(report: Report, *, show_all: bool) -> TableView | None:
    """Which stages, kinds and workers lengthen the step; only for logs of operations."""
    whatif = report.whatif
    if whatif.source != "operations" or whatif.slowdown is None:
        return None
    rows = tuple(_rows(whatif, show_all=show_all))
    return TableView(
        title="Slowdown",
        caption="slowdown if all else is ideal; saves: time recovered by making this ideal",
        columns=(
            Column("what", left=True, stretch=True),
            Column("slowdown"),
            Column("saves"),
            Column("computes per step"),
        ),
        rows=rows,
        strong=frozenset({0}),
    )


def _rows(whatif: WhatIfResult, *, show_all: bool) -> Iterator[tuple[str, str, str, str]]:
    saved = {scenario.what: scenario.recoverable_ns for scenario in whatif.without}
    lost = (whatif.replayed_ns or 0) - (whatif.ideal_ns or 0)
    yield "everything", _beyond(whatif.slowdown), _saves(lost), ""
    last = max((stage.stage for stage in whatif.stages), default=None)
    stages = sorted(whatif.stages, key=lambda stage: -stage.slowdown)
    for stage in stages if show_all else stages[:MAX_STAGES_SHOWN]:
        name = f"stage {stage.stage} ({few_ranks(stage.ranks, 24)})"
        key = "last-stage" if stage.stage == last else f"stage {stage.stage}"
        computes = format_duration(stage.compute_ns)
        yield name, _beyond(stage.slowdown), _saves(saved.get(key)), computes
    for kind in whatif.kinds if show_all else whatif.kinds[:MAX_KINDS_SHOWN]:
        yield kind.kind, _beyond(kind.slowdown), _saves(saved.get(f"kind {kind.kind}")), ""
    stage_alone = {one.ranks for one in whatif.stages}
    workers = [one for one in whatif.workers if (one.rank,) not in stage_alone]
    for worker in workers if show_all else workers[:MAX_WORKERS_SHOWN]:
        name = f"rank {worker.rank} (dp_rank {worker.dp_rank}, stage {worker.stage})"
        yield name, _beyond(worker.slowdown), _saves(saved.get(f"rank {worker.rank}")), ""


def _saves(ns: int | None) -> str:
    """Time that a step saves; empty if it is too little for a scenario."""
    return format_duration(ns) if ns is not None and ns > 0 else ""


def _beyond(slowdown: float | None) -> str:
    if slowdown is None:
        return "–"
    beyond = slowdown - 1
    if abs(beyond) < 0.0005:
        return "none"
    return f"+{format_ratio(beyond)}" if beyond > 0 else f"−{format_ratio(-beyond)}"


# The first lines of a report on a log of operations, which holds no trace ------------------------

MIN_SLOWDOWN = 1.03
MIN_SHARE = 0.25
NEARLY_ALL = 0.8


def operations_origin(report: Report) -> str:
    """The size of the job, and the steps that a log of operations holds."""
    if report.step_time.source != StepSource.OPERATIONS:
        return ""
    run = report.run
    ranks = counted(run.world_size, "rank") if run.world_size else ""
    steps = counted(report.step_time.num_steps, "step")
    facts = (mesh_text(run.mesh, ""), ranks, steps, "no traces")
    return " · ".join(fact for fact in facts if fact)


def operations_verdict(report: Report) -> VerdictText:
    """The verdict on a log of operations and the numbers behind it; None for other reports."""
    whatif = report.whatif
    if whatif.source != "operations" or whatif.slowdown is None:
        return None
    if whatif.slowdown < MIN_SLOWDOWN:
        beyond = format_ratio(max(0.0, whatif.slowdown - 1))
        longer = "as long as" if whatif.slowdown <= 1 else f"{beyond} longer than"
        line = f"Operations are even: steps take {longer} with equally long operations."
        return line, (_model_sentence(whatif),)
    causes = causes_of(whatif, MIN_SHARE)
    beyond = format_ratio(whatif.slowdown - 1)
    cause = capitalized(_subject(whatif, causes[0]) if causes else "no single cause explains it")
    line = f"Steps take {beyond} longer than with even operations. {cause}."
    # M_S and M_W in words
    shares = (
        ("the last pipeline stage explains", whatif.m_s),
        ("the slowest 3 % of the workers", whatif.m_w),
    )
    parts = [
        f"{who} {format_ratio(share) if share >= 0 else 'nothing'}"
        for who, share in shares
        if share is not None
    ]
    text = f"{', '.join(parts)} of the slowdown (shares overlap and may exceed 100 %)."
    why = ((capitalized(text) if parts else ""), _steps_sentence(whatif), _model_sentence(whatif))
    return line, tuple(sentence for sentence in why if sentence)


def _subject(whatif: WhatIfResult, cause: Cause) -> str:
    """What causes how much of the slowdown. Causes overlap, so a large part counts as all."""
    part = "it" if cause.share >= NEARLY_ALL else f"{format_ratio(cause.share)} of it"
    if cause.kind is CauseKind.WORKERS:
        ranks = cause.scenario.ranks
        return f"{few_ranks(ranks, 40)} explain{'s' if len(ranks) == 1 else ''} {part}"
    if cause.kind is CauseKind.STAGES:
        longest = limiting_stage(whatif)
        named = "an uneven pipeline" if longest is None else f"stage {longest.stage}"
        return f"{named} explains {part}"
    if cause.kind is CauseKind.DATA:
        return f"sequences of unequal length explain {part}"
    if cause.kind is CauseKind.TRANSFERS:
        kind = cause.scenario.what.removeprefix("kind ")
        return f"transfers of kind {kind} explain {part}"
    return f"micro-batches that vary without a pattern explain {part}"


def _steps_sentence(whatif: WhatIfResult) -> str:
    if not whatif.steps or whatif.ideal_ns is None:
        return ""
    worst = whatif.steps[0]
    return fill(_TABLE["ideal"], ideal=whatif.ideal_ns, worst=worst, longer=worst.slowdown - 1)


def _model_sentence(whatif: WhatIfResult) -> str:
    if not whatif.model_error_ratio:
        return ""  # unknown, or nothing to explain
    error = format_ratio(abs(whatif.model_error_ratio))
    way = "shorter" if whatif.model_error_ratio < 0 else "longer"
    return fill(_TABLE["off"], error=error, way=way)
