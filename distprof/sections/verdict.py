"""The first line of every report: what dominates, how much of the step it takes, what to do.

Pure: from a report to sentences. The measure is the lost-time waterfall; a finding's own cost is
shown with the finding. When no loss reaches :data:`MIN_LOSS_RATIO` of a step, computation is the
verdict, because nothing else is worth the reader's day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.efficiency.show import efficiency_sentence
from distprof.sections.moe.show import experts_verdict
from distprof.sections.nccl.show import nccl_verdict
from distprof.sections.parts import (
    Part,
    device_word,
    is_cpu_only,
    is_whole_capture,
    parts_of,
    window_word,
)
from distprof.sections.pipeline.show import pipeline_verdict
from distprof.sections.placement.show import machine_verdict
from distprof.sections.shares import has_all_members
from distprof.sections.stragglers.result import RankStraggler
from distprof.sections.summaries.show import summaries_verdict
from distprof.sections.telemetry.show import devices_verdict
from distprof.sections.training_log.show import training_verdict
from distprof.sections.whatif.show import operations_verdict
from distprof.terms import CollectiveKind, MeshAxis, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["MIN_LOSS_RATIO", "Verdict", "culprits", "judge"]

MIN_LOSS_RATIO = 0.05
"""A part smaller than this share of the step is not what dominates."""

MIN_GAIN_RATIO = 0.01
"""A simulated gain below this share of the step is not worth a sentence."""

_ACTIONS = {
    "exposed_transfer": "hide it behind computation, or send fewer bytes over faster links",
    "exposed_p2p_wait": "balance the stages, or use more micro-batches",
    "exposed_comm_unsplit": "hide it behind computation",
    "exposed_copy": "copy from pinned memory, without blocking, while kernels run",
    "idle_host": "launch less from Python (CUDA graphs, torch.compile, bigger kernels)",
    "idle_sync": "remove the calls that wait for the device inside the step",
    "idle_input": "load batches earlier and with more workers",
    "idle_comm_wait": "look at what the device waited for after communication",
    "idle_unknown": "record host activities too, and read them (no --device-only), to learn why",
}

_SUBJECTS = {
    "exposed_transfer": "Moving data between ranks takes",
    "exposed_p2p_wait": "Waiting in send and recv takes",
    "exposed_comm_unsplit": "Communication that nothing hides takes",
    "exposed_copy": "Memory copies that nothing hides take",
    "idle_host": "A host that launches too late leaves the {device} idle for",
    "idle_sync": "Synchronising calls leave the {device} idle for",
    "idle_input": "Waiting for input takes",
    "idle_comm_wait": "The {device} sits idle after communication for",
    "idle_unknown": "The {device} is idle, for a cause this recording does not show, for",
}

_CAUSE_ACTIONS = {
    StragglerCause.SLOW_DEVICE: "its device runs the same kernels slower: check clocks and heat",
    StragglerCause.MORE_WORK: "it has more to compute: balance the work",
    StragglerCause.LATE_HOST: "its host launches late: look at what that CPU does",
    StragglerCause.LATE_INPUT: "its input comes late: look at its data loading",
    StragglerCause.UNKNOWN: "look at what it does before its collectives",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to tell a reader first.

    Args:
        line: One sentence.
        why: The numbers behind it, a few sentences.
        part: Key of the part that dominates, empty when nothing was measured.
    """

    line: str
    why: tuple[str, ...]
    part: str


def judge(report: Report) -> Verdict:
    """The verdict on ``report``: first how the job ended, unless it ended as it should."""
    measured = _judge_measured(report)
    ended = _end_line(report)
    if not ended:
        return measured
    return Verdict(line=ended, why=(measured.line, *measured.why), part=measured.part)


def _judge_measured(report: Report) -> Verdict:
    parts = parts_of(report)
    if not parts:
        return _without_parts(report)
    losses = [part for part in parts if part.key != "computation"]
    worst = max(losses, key=lambda part: _weight(report, part))
    span = sum(part.ns for part in parts)
    if _weight(report, worst) < MIN_LOSS_RATIO * span:
        dominant, line = parts[0], _computation_line(report, parts[0], worst)
    else:
        dominant, line = worst, _loss_line(report, worst)
    return Verdict(line=line, why=_why(report, parts, dominant.key), part=dominant.key)


def _without_parts(report: Report) -> Verdict:
    """Where no trace shows what steps consist of: what another tool's log tells, if anything."""
    told = (
        operations_verdict(report)
        or pipeline_verdict(report)
        or experts_verdict(report)
        or training_verdict(report)
        or summaries_verdict(report)
        or nccl_verdict(report)
        or devices_verdict(report)
        or machine_verdict(report)
    )
    line, why = told or (_nothing_measured(report), ())
    return Verdict(line=line, why=why, part="")


def culprits(report: Report) -> tuple[RankStraggler, ...]:
    """Ranks that others wait for by a clear pattern, dearest first."""
    named = (r for r in report.stragglers.ranks if r.pattern != StragglerPattern.NONE)
    return tuple(sorted(named, key=lambda r: -r.lost_ns_per_step))


def _weight(report: Report, part: Part) -> float:
    """What a part costs a step. A straggler does not wait, so the mean understates its cost."""
    late = culprits(report)
    if part.key == "exposed_wait" and late:
        return max(part.ns, late[0].lost_ns_per_step)
    return part.ns


def _end_line(report: Report) -> str:
    """What happened to a job that did not come to its end; empty for one that did."""
    job = report.job
    if job.failure is not None:
        message = " ".join(job.failure.message.split()).rstrip(".")
        return f"{message[:1].upper()}{message[1:]}." if message else "The job failed."
    if job.outcome == "failed":
        return "The job failed; which rank failed first is not known."
    last = report.step_log.last_step
    after = "" if last is None else f" after step {last}"
    if job.outcome == "interrupted":
        return f"The job was interrupted{after}."
    if job.outcome == "running":
        seen = "" if last is None else f"; its last step on record is {last}"
        return f"The job was still running, or its launcher was killed{seen}."
    return ""


def _logged_line(report: Report) -> str:
    """What the step log tells where there is no trace."""
    log = report.step_log
    gap = next((g.message for g in report.capture.gaps if g.what == "no-traces"), "")
    because = gap.rstrip(".") or "No trace was recorded"
    if log.median_ns is None:
        return f"{because}: where steps went cannot be told."
    num_plain = max(rank.num_plain for rank in log.ranks)
    steps = f"{num_plain:,} step{'' if num_plain == 1 else 's'}"
    text = f"A step takes {format_duration(log.median_ns)} (median of {steps})"
    if log.input_ratio is not None and log.input_ratio >= MIN_LOSS_RATIO:
        text += f", {format_ratio(log.input_ratio)} of it waiting for input"
    return f"{text}. {because}: where the rest goes needs a trace of some steps."


def _nothing_measured(report: Report) -> str:
    if report.step_log.ranks and not report.run.ranks:
        return _logged_line(report)
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "the recording holds no device or operator activity")
    return f"Nothing could be measured: {reason.rstrip('.')}."


def _computation_line(report: Report, computation: Part, worst: Part) -> str:
    share = f"{format_ratio(computation.ratio)} of {_each(report)}"
    if worst.ns <= 0:
        return f"Computation takes {share}: only faster kernels would shorten it."
    return (
        f"Computation dominates ({share}): no other part takes more than "
        f"{format_ratio(worst.ratio)} ({worst.label})."
    )


def _loss_line(report: Report, worst: Part) -> str:
    if worst.key == "exposed_wait":
        return _wait_line(report, worst)
    subject = _SUBJECTS[worst.key].format(device=device_word(report))
    if worst.key == "idle_unknown" and is_cpu_only(report):
        subject = "Between operators, in Python or blocked, the host spends"
    if worst.key == "exposed_transfer" and _lacks_members(report):
        subject = "Moving data, or waiting for ranks that are not in the recording, takes"
    return (
        f"{subject} {format_ratio(worst.ratio)} of {_each(report)} "
        f"({_amount(report, worst.ns)}): {_action(report, worst)}."
    )


def _wait_line(report: Report, wait: Part) -> str:
    late = culprits(report)
    if not late or late[0].lost_ns_per_step < wait.ns / 2:
        return (
            f"Waiting for whichever rank comes last takes {format_ratio(wait.ratio)} of "
            f"{_each(report)} ({_amount(report, wait.ns)}): no single rank is to blame, "
            "even out the work between ranks."
        )
    if len(late) > 1 and late[1].lost_ns_per_step > late[0].lost_ns_per_step / 2:
        ranks = short_ranks([r.rank for r in late])
        return (
            f"Waiting for ranks {ranks} takes {format_ratio(wait.ratio)} of {_each(report)} "
            f"({_amount(report, wait.ns)}): find what these ranks have in common."
        )
    first = late[0]
    return (
        f"Waiting for rank {first.rank} takes {format_ratio(first.share_of_step_ratio)} of "
        f"{_each(report)} ({_amount(report, first.lost_ns_per_step)}); "
        f"{_CAUSE_ACTIONS[first.cause]}."
    )


def _action(report: Report, worst: Part) -> str:
    if worst.key == "exposed_transfer" and _lacks_members(report):
        return "record all ranks to tell which"
    if worst.key == "exposed_comm_unsplit":
        if len(report.run.ranks) == 1 and report.run.world_size != 1:
            return "one rank alone cannot tell waiting from transfer, record the others too"
        return "its ranks could not be matched, so waiting and transfer are not told apart"
    if worst.key == "idle_unknown" and is_cpu_only(report):
        return "use fewer, larger operators; record stacks to see what runs between them"
    if worst.key == "idle_unknown" and report.idle.ranks:
        inside = sum(rank.within_launch_ns for rank in report.idle.ranks)
        if inside > sum(rank.unknown_ns for rank in report.idle.ranks) / 2:
            return (
                "most of it lies in CUDA graphs, whose kernels the trace may lack; "
                "record once without them"
            )
        return "look at the gaps in a timeline"
    if worst.key == "exposed_p2p_wait" and _axes_of_messages(report) == {MeshAxis.CP.value}:
        return "send the next block while this one is worked on, and give all ranks as much work"
    return _ACTIONS[worst.key]


def _axes_of_messages(report: Report) -> set[str | None]:
    kinds = {kind.label for kind in CollectiveKind if kind.is_point_to_point}
    return {record.axis for record in report.collectives.classes if record.kind in kinds}


def _lacks_members(report: Report) -> bool:
    return not has_all_members(report.capture)


def _each(report: Report) -> str:
    return "the whole capture" if is_whole_capture(report) else "each step"


def _amount(report: Report, ns: float) -> str:
    span = sum(part.ns for part in parts_of(report))
    return f"{format_duration(ns)} of {format_duration(span)}"


def _why(report: Report, parts: tuple[Part, ...], dominant: str) -> tuple[str, ...]:
    sentences: tuple[Callable[[Report, tuple[Part, ...]], str], ...] = (
        _who_sentence,
        _communication_sentence,
        _idle_sentence,
        efficiency_sentence,
        _limits_sentence,
    )
    texts = [sentence(report, parts) for sentence in sentences]
    texts.insert(1, _gain_sentence(report, dominant))
    return tuple(text for text in texts if text)


_WITHOUT = {
    "exposed_transfer": "exposed transfer",
    "exposed_copy": "copies",
    "exposed_p2p_wait": "stage-imbalance",
    "idle_host": "launch-gaps",
    "idle_sync": "sync-calls",
    "idle_input": "input",
}
"""Part of the step to the scenario without it."""


def _gain_sentence(report: Report, dominant: str) -> str:
    """What the simulated step would take without what dominates, and how good the model is."""
    key = _WITHOUT.get(dominant, "")
    if dominant == "exposed_wait":
        late = culprits(report)
        key = f"rank {late[0].rank}" if late else "late ranks"
    result = report.whatif
    found = next((scenario for scenario in result.without if scenario.what == key), None)
    if found is None or not result.replayed_ns or result.model_error_ratio is None:
        return ""
    if found.recoverable_ns < MIN_GAIN_RATIO * result.replayed_ns:
        return ""
    return (
        f"Simulated so that {found.title}, a {window_word(report)} takes "
        f"{format_duration(found.step_ns)} instead of {format_duration(result.replayed_ns)} "
        f"({format_ratio(found.recoverable_ns / result.replayed_ns)} less); the simulation itself "
        f"is {format_ratio(abs(result.model_error_ratio))} off what was measured."
    )


def _who_sentence(report: Report, parts: tuple[Part, ...]) -> str:  # noqa: ARG001 - one signature
    late = culprits(report)
    if not late:
        return ""
    first = late[0]
    how_often = f"comes last in {format_ratio(first.late_ratio)} of collectives"
    told = how_often if first.late_ratio is not None else "makes the others wait"
    cause = first.cause.value.replace("_", " ")
    because = f"cause {cause}" if first.cause != StragglerCause.UNKNOWN else "cause not in traces"
    once = report.waterfall.num_steps == 1
    pattern = "whether it lasts cannot be told" if once else first.pattern.value
    return (
        f"Rank {first.rank} {told} and costs a typical other rank "
        f"{format_duration(first.lost_ns_per_step)} per {window_word(report)}: "
        f"{pattern}, {because} (confidence {100 * first.confidence:.0f} %)."
    )


def _communication_sentence(report: Report, parts: tuple[Part, ...]) -> str:
    total = sum(rank.communication_ns for rank in report.overlap.ranks)
    if total <= 0:
        return ""
    hidden = sum(rank.overlapped_ns for rank in report.overlap.ranks)
    by_key = {part.key: part.ns for part in parts}
    wait = by_key["exposed_wait"] + by_key["exposed_p2p_wait"]
    transfer, unsplit = by_key["exposed_transfer"], by_key["exposed_comm_unsplit"]
    exposed = wait + transfer + unsplit
    text = f"Computation hides {format_ratio(hidden / total)} of communication"
    if exposed <= 0:
        return f"{text}."
    if unsplit > exposed / 2:
        return f"{text}; of the rest, waiting and transfer cannot be told apart."
    doubt = " or waiting for ranks not recorded" if _lacks_members(report) else ""
    return (
        f"{text}; of the rest, {format_ratio(wait / exposed)} is waiting for late ranks and "
        f"{format_ratio(transfer / exposed)} is transfer{doubt}."
    )


def _idle_sentence(report: Report, parts: tuple[Part, ...]) -> str:
    idle = [part for part in parts if part.key.startswith("idle_")]
    total = sum(part.ratio for part in idle)
    if total < MIN_LOSS_RATIO:
        return ""
    worst = max(idle, key=lambda part: part.ns)
    return (
        f"The {device_word(report)} is idle for {format_ratio(total)} of {_each(report)}, "
        f"mostly {worst.label.removeprefix('idle: ')} ({format_ratio(worst.ratio)})."
    )


def _limits_sentence(report: Report, parts: tuple[Part, ...]) -> str:  # noqa: ARG001
    limits = []
    if is_whole_capture(report):
        limits.append(f"{_why_no_steps(report)} the whole capture counts as one window")
    if report.capture.ranks_missing:
        missing = report.capture.ranks_missing
        were = (
            f"ranks {short_ranks(missing)} were" if len(missing) > 1 else f"rank {missing[0]} was"
        )
        chosen = any(gap.what == "chosen-ranks" for gap in report.capture.gaps)
        limits.append(f"{were} {'left out, as asked' if chosen else 'not recorded'}")
    elif len(report.run.ranks) == 1 and report.run.world_size is None:
        limits.append("one rank was recorded, of a job of unknown size")
    if not limits:
        return ""
    text = "; ".join(limits)
    return f"{text[0].upper()}{text[1:]}."


def _why_no_steps(report: Report) -> str:
    if report.capture.steps:
        return "as asked,"
    if report.capture.dropped_steps:
        return "no step was recorded completely by every rank, so"
    return "no step marks were found, so"
