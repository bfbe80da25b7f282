"""Output of training programs."""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

from distprof.bounds import table_beside
from distprof.escape import MAX_HEADLINE
from distprof.ingest.training_logs.grammar import AGAIN, AXES, FILE, OF_THE_JOB, RUN, TYPED, USE
from distprof.sections.base import VerdictText
from distprof.sections.nccl.show import jobs_fact, nccl_verdict, told
from distprof.sections.parts import is_recorded
from distprof.sections.step_log.show import format_rate
from distprof.sections.summaries.show import scaling_lines
from distprof.sections.table import Bar, Column, TableView, counted, facts_table, rows_table
from distprof.sections.telemetry.show import sensors_sentence
from distprof.sections.training_log import (
    LONG_REDUCTION,
    ONLY_FIRST,
    TrainingLogResult,
    TrainingTimer,
)
from distprof.units import capitalized, format_duration, format_ratio, sentence

if TYPE_CHECKING:
    from distprof.sections.report import Report

MIN_IDLE_RATIO, MIN_SLOW_RATIO = 0.05, 0.02

MOST_REST_RATIO = 0.3  # Timers of unknown names that leave at most this are the parts
MOST_PARTS, MAX_ROWS = 4, 15
MOST_OF_ALL = 0.9  # Share of the wait for input from which the rest does not matter

_FEW_REPORTS, _FAR_LONGER = 3, 10  # Up to this many reports, someone chose them one by one
_FEWEST_RISING, _RISEN = 5, 1.02  # Reports that each take longer, which is rarely chance; ratio
_SKEWED, _FAR_OFF = 1.5, 2  # Ratio to the median of the mean, and of few long iterations,
_FEW_LONG = 8  # of which there is one in eight
_FEWEST_MODES, _MOST_APART = 6, 4  # Reports in which two groups are; ratio to the smaller one
_FAR, _BEGINNING = 3, 16  # Ratio between the two, and letters of a note that say its kind
_CHANGED, _STEADY, _FEWEST_STATE = 1.3, 0.25, 2  # Two states: ratio, scatter, fewest reports

_BARS = ("computation", "exposed_wait")  # Keys of the bar of a timer, by whether it waits
_SHORT = "GPU memory is short"
_OF_ONE = re.compile(r"since the last report \((\d+)\): .* of one\.").search
_TABLE = table_beside(__package__, "phases.toml")
_says = partial(sentence, _TABLE["said"])
_FIRST, _INSTEAD, _TOLD = (tuple(_TABLE["notes"][which]) for which in ("first", "instead", "told"))
_PHASES = {phase: re.compile(known) for phase, known in _TABLE["timers"].items()}
_ADVICE = {phase: advice["text"] for advice in _TABLE["advice"] for phase in advice["on"]}
_RECORD = dict.fromkeys(_TABLE["others"], _TABLE["profile"])
_OUTSIDE, _PHASES_ALONE = "outside of these", "the timed phases"
_MOST_OF_IT, _MOST_OF_BACKWARD = 0.4, 0.75


def training_verdict(report: Report) -> VerdictText:
    """The verdict and the numbers behind it; None for other reports."""
    if not _is_alone(report):
        return None
    log = report.training_log
    is_short = any(note.startswith(_SHORT) for note in log.unavailable)
    nccl_line = (nccl_verdict(report) or ("",))[0].partition("What connects the ranks")[0].rstrip()
    line, undecided = _line(log), ("", "")
    for note in (one for one in log.unavailable if one.startswith(_FIRST)):
        line = line if note[:_BEGINNING] in line else f"{note} {line}"  # one of each kind
    is_known = log.mean_ns is None or log.idle_ratio is not None or bool(_shares(log))
    slow_rank = next((text for a, text in _TABLE["slow_rank"].items() if line.startswith(a)), "")
    if nccl_line and not (is_known or slow_rank or _is_skewed(log)):  # the best available
        time = f"{_what(log)} takes {format_duration(log.mean_ns)}"
        first = nccl_line[:1] if nccl_line[1:2].isupper() else nccl_line[:1].lower()
        line, nccl_line = f"{time}; {first}{nccl_line[1:]}", ""
    elif not (is_known or slow_rank):
        undecided = _undecided(log)
    why = (
        sensors_sentence(report),
        *(_says("save", t=t, reports=counted(t.num_reports, "report")) for t in _saves(log)),
        *undecided,
        *(
            _says("rare", t=t, reports=counted(t.num_reports, log.unit), log=log)
            for t in _rare(log)[0]
        ),
        *(_waiting(log), _reducing(log)),
        *(slow_rank or _advice(log), slower_sentence(log)),
        *(_slow_sentence(log), f"Throughput: {rates}." if (rates := rate_text(log)) else ""),
        *(nccl_line, *(told(report.nccl, "connections") if nccl_line else ()), _left_out(log)),
        *(note for note in log.unavailable if note.startswith(_TOLD[: -1 if is_short else None])),
    )
    reasons = tuple(dict.fromkeys(each for each in why if each and each not in line))
    compared = scaling_lines(report.scaling_table)
    of_log = next((note for note in log.unavailable if note.startswith((RUN, AGAIN, FILE))), "")
    if log.num_files > 1 and compared:  # files, of numbers of GPUs
        line, of_log = of_log or line, ""
    of_runs = of_log or (compared[0] if compared else "")  # printed times before typed ones
    has_phases = bool(_shares(log)) and not compared
    lead = (line, of_runs) if has_phases else (of_runs, line)  # what takes most comes first
    reasons += () if of_log else tuple(compared[1:])
    return (lead[0], (lead[1], *reasons)) if of_runs else (line, reasons)


def _is_alone(report: Report) -> bool:
    """Whether the report holds only a training program's output, NCCL's lines included."""
    return bool(report.training_log.origin) and not is_recorded(report)


def training_origin(report: Report) -> str:
    """The log's origin, the size of the job, and the log's contents."""
    if not _is_alone(report):
        return ""
    log, num_nccl = report.training_log, report.nccl.num_files
    facts = [
        f"log of {log.origin}",
        counted(log.world_size, "rank") if log.world_size else "",
        counted(log.num_files, "file") if log.num_files > 1 else "",
        counted(log.num_reports, "report"),
        f"NCCL logs from {counted(num_nccl, 'file')}" if num_nccl else "",
        jobs_fact(report.nccl),
        "no traces",
    ]
    return " · ".join(fact for fact in facts if fact)


def ideal_sentence(log: TrainingLogResult) -> str:
    """For example ``4 micro-batches on 16 stages leave 78.9 % idle at best``; empty if unknown."""
    if log.ideal_bubble_ratio is None:
        return ""
    virtual = f" × {log.virtual_stages}" if (log.virtual_stages or 1) > 1 else ""
    stages = f"{log.mesh['pp']}{virtual} stages"
    batches = counted(log.num_micro_batches or 0, "micro-batch")
    return f"{batches} on {stages} leave {format_ratio(log.ideal_bubble_ratio)} idle at best"


def rate_text(log: TrainingLogResult) -> str:
    """Throughput as far as known, for example ``3.93 samples/s · 4,026 tokens/s``."""
    return " · ".join(f"{format_rate(rate)} {unit}" for rate, unit in _rates(log))


def _rates(log: TrainingLogResult) -> list[tuple[float, str]]:
    """Known rates and their units."""
    is_game = log.origin.endswith("of the environment)")
    rates = (
        (log.printed_samples_per_s or log.samples_per_s, f"{'steps' if is_game else 'samples'}/s"),
        (log.tokens_per_s, "tokens/s"),
        (log.tokens_per_s_per_device, "tokens/s per GPU"),
        (log.tflops, "TFLOP/s per GPU"),
    )
    return [(rate, unit) for rate, unit in rates if rate is not None]


def _what(log: TrainingLogResult) -> str:
    """What the times are those of, for example ``An iteration``."""
    is_first = log.num_reports == 1 and log.last_iteration in (0, 1)
    return f"{'The first' if is_first else 'An' if log.unit[0] in 'ei' else 'A'} {log.unit}"


def _line(log: TrainingLogResult) -> str:
    use = next((n.removeprefix(USE) for n in log.unavailable if n.startswith(USE)), "")
    if log.mean_ns is None:
        first = slower_sentence(log) or (f"The training reaches {use}." if use else "")
        text = f"distprof finds no iteration times in the log of {log.origin}."
        text = f"Throughput: {rates}. {text}" if (rates := rate_text(log)) else text
        text = next((n for n in log.unavailable if n.startswith(_INSTEAD) and not first), text)
        how = _RECORD.get(log.origin, _TABLE["record"])
        return f"{first} {text} To see where time goes, {how}.".lstrip()
    usual, mean = format_duration(log.median_ns), format_duration(log.mean_ns)
    time = f"{_what(log)} {'comes every' if log.unit == 'report' else 'takes'} {mean}"
    rare, without = _rare(log)
    if rare and _shares(log):
        names = " and ".join(timer.name for timer in rare)
        time = f"{_what(log)} takes {format_duration(without)} without {names}"
    elif modes := _modes(log):
        time = f"{time}: {modes}"
    elif _is_skewed(log):
        at = log.longest_iteration
        longest = "reports show up to" if at is None else f"{log.unit} {at:,} takes"
        longest = f"{longest} {format_duration(log.max_ns)}"
        time = f"{_what(log)} usually takes {usual}, but {longest}: that makes the mean {mean}"
    elif log.unit == "epoch" and (log.first_ns or 0) > _FAR_LONGER * (log.median_ns or math.inf):
        return f"The first report shows {format_duration(log.first_ns)} per epoch, others {mean}."
    elif (or_all := next(filter(None, map(_OF_ONE, log.unavailable)), None)) and not _shares(log):
        each = format_duration(round(log.mean_ns / int(or_all[1])))
        return f"{time}, or {each} if a printed time covers {or_all[1]} {log.unit}s."
    if log.idle_ratio is None:
        use = f", at {use}" if use and not (_is_skewed(log) or log.slow_span) else ""
        if any(note.startswith(_SHORT) for note in log.unavailable):
            use += f", and {_SHORT}"
        more = f"{use}." if use else _of_reports(log)
        return f"{time}{_phases(log, len(time)) or more}"
    is_of_slowest = any(note.startswith("Each timer") for note in log.unavailable)
    who = f"the {log.timer_stage} stage" if log.timer_stage else "the slowest rank"
    if log.mesh.get("pp", 1) < 2 and not is_of_slowest:
        who = "the rank of the timers"
    share = format_ratio(min(log.compute_ratio or 0.0, 1.0))
    text = f"{time}, and {who} computes for {share} of it"
    return f"{': '.join(filter(None, (text, ideal_sentence(log))))}."


def _phase_times(log: TrainingLogResult) -> tuple[dict[str, int], int]:
    """Time per iteration by phase, and the time of the iteration.

    DeepSpeed's timers do not say what they cover, but those of one line add up to a step.
    """
    found: dict[str, int] = {}
    rare, mean = _rare(log)
    for timer in (one for one in log.timers if one not in rare):  # longest first
        phase = next((name for name, known in _PHASES.items() if known.search(timer.name)), "")
        if phase:
            found.setdefault(phase, timer.mean_ns)
    if "forward and backward" in found and found.keys() & {"forward", "backward"}:
        both = found.pop("forward and backward")
        for one, other in (("forward", "backward"), ("backward", "forward")):
            found.setdefault(one, max(both - found.get(other, both), 0))
    whole = sum(found.values()) if log.origin == "DeepSpeed" else mean
    if log.input_timer is not None:
        found["waiting for input"] = log.input_timer.mean_ns
    return found, whole or 0


def _rare(log: TrainingLogResult) -> tuple[list[TrainingTimer], int]:
    """Long timers of few iterations, as of checkpoints, and the mean without them, in ns."""
    mean, num = log.mean_ns or 0, max(log.num_steady, 1)
    few = [t for t in log.timers if t.ratio and _FEW_REPORTS * t.num_reports <= num]
    few = [t for t in few if t.mean_ns * t.num_reports > MIN_IDLE_RATIO * mean * num]
    return few, mean - sum(t.mean_ns * t.num_reports for t in few) // num


def _saves(log: TrainingLogResult) -> list[TrainingTimer]:
    """Timers of checkpoints that are longer than an iteration and take much of the time."""
    least = MIN_IDLE_RATIO * (log.mean_ns or 0) * log.num_steady * (log.iterations_per_report or 1)
    known = (t for t in log.timers if t.ratio is None and t.name in _TABLE["saves"])
    return [t for t in known if t.mean_ns * t.num_reports > least]


def _shares(log: TrainingLogResult) -> dict[str, float]:
    """Share of an iteration by phase, the longest first, then the rest; empty if unknown."""
    times, whole = _phase_times(log)
    rest = whole - sum(times.values())
    are_typed = log.origin.startswith(TYPED)
    is_few = are_typed or times.keys() <= {"optimizer", "waiting for input"}
    if is_few or not -MIN_IDLE_RATIO * whole <= rest <= MOST_REST_RATIO * whole:
        most, rare = max((timer.num_reports for timer in log.timers), default=1), _rare(log)[0]
        known = (timer for timer in log.timers if timer not in rare)
        every = {timer.name: timer.mean_ns * timer.num_reports // most for timer in known}
        left = whole - sum(every.values())
        is_whole = len(every) > 1 and left <= MOST_REST_RATIO * whole
        if left >= -MIN_IDLE_RATIO * whole and (is_whole or are_typed):
            times, rest = every, left
        elif is_few or rest < 0:
            return {}
    order = sorted(filter(times.get, times), key=lambda phase: -times[phase])
    shares = {phase: min(times[phase] / whole, 1.0) for phase in order[:MOST_PARTS]}
    has_backward = "forward" not in times or any("backward" in phase for phase in times)
    others = _OUTSIDE if has_backward else "backward and the rest"
    return shares | ({others: rest / whole} if rest > MIN_IDLE_RATIO * whole else {})


def _phases(log: TrainingLogResult, before: int) -> str:
    """For example ``: backward 63.3 %, forward 36.7 %.``; empty if the phases are unknown.

    Those that do not fit into a headline after this many characters make a sentence of their own.
    """
    parts = [f"{phase} {format_ratio(share)}" for phase, share in _shares(log).items()]
    start = ": " if _phase_times(log)[1] == _rare(log)[1] else f"; of {_PHASES_ALONE}, "
    lengths = accumulate((len(part) + 2 for part in parts), initial=before + len(start) - 2)
    num = sum(length <= MAX_HEADLINE for length in lengths) - 1 or len(parts)
    first, more = ", ".join(parts[:num]), ", ".join(parts[num:])
    return (f"{start}{first}." if first else "") + (f" {capitalized(more)}." if more else "")


def _is_skewed(log: TrainingLogResult) -> bool:
    """Whether few long iterations make the mean, so that the median is what is usual."""
    usual, ns = log.median_ns or math.inf, log.steady_ns
    most = [each for each in ns if each < _FAR_OFF * usual]  # which are alike, and not all of it
    is_even = sum(most) < (1 + MIN_IDLE_RATIO) * usual * len(most)
    is_part = sum(ns) > (1 + 2 * MIN_IDLE_RATIO) * usual * len(ns)
    is_few = is_even and is_part and _FEW_LONG * (len(ns) - len(most)) <= len(ns)
    return (log.mean_ns or 0) > _SKEWED * usual or is_few


def _modes(log: TrainingLogResult) -> str:
    """For example ``3 of 8 reports show about 40.0 s, the others 4.0 s``, if none is between."""
    ns = sorted(log.steady_ns)
    if len(ns) < _FEWEST_MODES:
        return ""
    ratio, num = max((b / max(a, 1), i) for i, (a, b) in enumerate(pairwise(ns), start=1))
    spread = max(ns[num - 1] / max(ns[0], 1), ns[-1] / max(ns[num], 1))
    least = min(num, len(ns) - num)
    is_far = ratio >= _FAR and spread <= ratio / _SKEWED and len(ns) <= _MOST_APART * least
    turns = sum((a < ns[num]) != (b < ns[num]) for a, b in pairwise(log.steady_ns))
    is_state = turns <= _FEWEST_STATE <= least and spread - 1 < (ratio - 1) * _STEADY
    is_state &= len({*ns}) > _FEWEST_STATE  # else one digit decides
    if not is_far and (log.slow_span or not is_state or ratio < _CHANGED):
        return ""
    few, many = (format_duration(median(part)) for part in (ns[num:], ns[:num]))
    return f"{len(ns) - num} of {len(ns)} reports show about {few}, the others {many}"


def _of_reports(log: TrainingLogResult) -> str:
    """For example `` (mean of 5 reports, median 3.2 s).``; of one, only that it is one."""
    reports, usually = counted(log.num_steady, "report"), format_duration(log.median_ns)
    mean = f" (mean of {reports}, median {usually})" if log.num_steady > 1 else f" ({reports})"
    if log.num_steady == 1 and (num := log.iterations_per_report or 1) > 1:
        mean = f" (mean of {num:,} {log.unit}s)"
    return "." if _is_skewed(log) else f"{mean}."


def _undecided(log: TrainingLogResult) -> tuple[str, str]:
    """What the log shows of the time, and why not where it goes, and what would."""
    known = next((n for n in log.unavailable if n.startswith((*OF_THE_JOB, ONLY_FIRST))), "")
    if log.input_timer is not None and not known:
        waiting = log.input_timer.ratio or 0.0
        known = f"Waiting for input takes {format_ratio(waiting)} of it."
        if waiting < MIN_IDLE_RATIO:
            known = f"Input is not the limit: waiting for it takes {format_ratio(waiting)}."
    timers = [timer for timer in log.timers if timer not in _saves(log)]
    how = "" if timers else _TABLE["how_to_print_timers"].get(log.origin, "")
    if known.startswith(ONLY_FIRST):
        return known, "Where the time goes is not decided: keep the timers of later iterations."
    if known and log.input_timer is not None and (log.input_timer.ratio or 0.0) > MOST_OF_ALL:
        return known, ""
    why = "distprof finds no timers of it"
    if timers and not known:
        why = f"{', '.join(t.name for t in timers[:MOST_PARTS])} alone cannot show it"
    record = _RECORD.get(log.origin, _TABLE["record"])
    what, first = "the rest" if known else "the time", f"{how}, or " if how else ""
    return known, f"Where {what} goes is not decided, because {why}: {first}{record}."


def _waiting(log: TrainingLogResult) -> str:
    """Timers that are waiting for other stages."""
    waits = [t for t in log.timers if t.waits and (t.ratio or 0) >= MIN_IDLE_RATIO]
    parts = ", ".join(f"{t.name} {format_duration(t.mean_ns)}" for t in waits)
    return f"Timers that include waiting for other stages: {parts}." if waits else ""


def reduction(log: TrainingLogResult) -> tuple[TrainingTimer | None, float, str]:
    """The timer of the gradients' reduction, its share, and of what; no timer without a share."""
    _, whole = _phase_times(log)
    of = _what(log).lower() if whole == log.mean_ns else _PHASES_ALONE
    timer = next((one for one in log.timers if one.name in _TABLE["reductions"] and whole), None)
    ratio = timer.mean_ns / whole if timer else 0.0
    is_of_faster_rank = (log.compute_ratio or 0.0) + ratio > 1 + MIN_IDLE_RATIO
    return (None, 0.0, of) if is_of_faster_rank else (timer, ratio, of)


def _reducing(log: TrainingLogResult) -> str:
    """What the gradients' reduction takes, or after a long one, a finding, the all-gather."""
    what, (timer, ratio, of) = "reduction of gradients", reduction(log)
    if ratio >= LONG_REDUCTION:
        what, gather = "all-gather of parameters", _TABLE["gather"]
        timer = next((one for one in log.timers if one.name == gather and one.ratio), None)
        ratio = timer.ratio or 0.0 if timer else 0.0
    if timer is None or ratio < (0.0 if log.origin == "DeepSpeed" else MIN_IDLE_RATIO):
        return ""
    took = f"{format_duration(timer.mean_ns)}, {format_ratio(ratio)} of {of}"
    return f"The {what} ({timer.name}) takes {took}."


def _advice(log: TrainingLogResult) -> str:
    """What to do about a phase that takes most of the time; empty if none does."""
    shares = _shares(log)
    if any(note.startswith(_FIRST) for note in log.unavailable):  # which names what is there
        shares[_OUTSIDE] = 0.0
    if reduction(log)[0]:
        shares |= {"backward": 0.0, _OUTSIDE: 0.0}  # They contain the reduction, which says more.
    if _waiting(log) and "communication" in shares:
        shares["waiting for stages"] = shares.pop("communication")
    most = max(_ADVICE, key=lambda phase: shares.get(phase, 0.0))
    least = _MOST_OF_BACKWARD if most == "backward" else _MOST_OF_IT
    return _ADVICE[most] if shares.get(most, 0.0) >= least else ""


def slower_sentence(log: TrainingLogResult) -> str:
    """Since when iterations take longer; empty if they do not."""
    slow = log.slow_span
    ns = log.steady_ns
    is_rising = len(ns) >= _FEWEST_RISING and ns[-1] > _RISEN * ns[0]
    if slow is None and is_rising and all(b > a for a, b in pairwise(ns)):
        first, last = format_duration(ns[0]), format_duration(ns[-1])
        return f"{_what(log)} takes longer in each report, from {first} to {last}."
    if slow is None:
        return _slower_rate(log)
    now, usual = format_duration(slow.duration_ns), format_duration(slow.usual_ns)
    if slow.is_gradual:
        return f"{capitalized(log.unit)}s get longer and longer: {usual} at first, {now} later."
    when, what = slow.when(log.unit, log.iterations_per_report), _what(log).lower()
    ratio = slow.duration_ns / slow.usual_ns
    return f"{capitalized(when)}, {what} takes {now} instead of {usual}, {ratio:.2f} times as long."


def _slower_rate(log: TrainingLogResult) -> str:
    """Since when throughput is lower; empty if it is not."""
    slow, rates = log.slow_rate, _rates(log)
    if slow is None or not rates:
        return ""
    now, usual = (format_rate(1e9 / ns) for ns in (slow.duration_ns, slow.usual_ns))
    change = f"from {usual} to {now} {rates[0][1]}"
    if slow.is_gradual:
        return f"Throughput falls more and more, {change}."
    return f"Throughput falls {change} {slow.when(log.unit)}."


def _slow_sentence(log: TrainingLogResult) -> str:
    if log.slow_period and not log.num_slow:
        return _says("accumulated", log=log, shortest=min(log.steady_ns))
    share = (log.slow_excess_ns or 0) / (log.mean_ns or math.inf)
    if not log.num_slow or share < MIN_SLOW_RATIO:
        return ""
    often = f", every {log.slow_period:,} {log.unit}s" if log.slow_period else ""
    return _says("slow", log=log, often=often, share=share)


# The output of training programs, as tables -------------------------------------------------------


def training_log_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The training, from its log."""
    log = report.training_log
    if not log.origin:
        return None
    text = counted(log.num_reports, "report")
    if log.first_iteration is not None and log.last_iteration is not None:
        text += f", {log.unit}s {log.first_iteration:,} to {log.last_iteration:,}"
    text += f", {counted(log.num_restarts, 'restart')}" * bool(log.num_restarts)
    facts = (
        (f"{log.unit}s", text),
        (f"{log.unit} time", _time(log)),
        ("first report", _first(log)),
        ("change", slower_sentence(log)),
        ("traced steps", _traced(report)),
        ("throughput", rate_text(log)),
        ("layout", _layout(log)),
        ("pipeline", _pipeline(log)),
        ("slow iterations", _slow_sentence(log)),
        ("loss", "" if log.first_loss is None else f"{log.first_loss:.4g} to {log.last_loss:.4g}"),
    )
    return facts_table(
        "Training log", facts, caption=f"as printed by {log.origin}", notes=log.unavailable
    )


def timers_table(report: Report, *, show_all: bool) -> TableView | None:
    """The program's timers, longest first."""
    log = report.training_log
    shown = log.timers if show_all else log.timers[:MAX_ROWS]
    left = len(log.timers) - len(shown)
    stage = f"of the {log.timer_stage} stage" if log.timer_stage else "of a rank"
    return rows_table(
        "Timers",
        (
            Column("timer", "name", left=True),
            Column("time", "mean_ns"),
            Column("share", "ratio"),
            Column(
                "", lambda t: Bar(ratio=t.ratio or 0.0, key=_BARS[t.waits]), left=True, stretch=True
            ),
            Column("mostly", lambda t: "waiting for stages" * t.waits, left=True, wide_only=True),
        ),
        shown,
        caption=f"{stage}, mean per iteration; timers may contain each other",
        notes=(f"{counted(left, 'more timer')} with --all.",) if left > 0 else (),
    )


def slow_iterations_table(report: Report, *, show_all: bool) -> TableView | None:
    """The slowest iterations; only with --all."""
    log = report.training_log
    if not show_all or not log.median_ns:
        return None
    return rows_table(
        "Slowest iterations",
        (Column("iteration", "iteration"), Column("time", "duration_ns")),
        log.slowest,
        caption="iterations above 1.2 times the median of their neighbours",
    )


def _time(log: TrainingLogResult) -> str:
    if log.mean_ns is None:
        return ""
    text = _says("times", log=log)
    return text if log.cv is None else f"{text} · varies by {format_ratio(log.cv)}"


def _first(log: TrainingLogResult) -> str:
    """The first report, if it is much longer, as programs compile in it, or shorter."""
    if not log.first_ns or not log.median_ns or 0.8 < log.first_ns / log.median_ns < 2:
        return ""
    return f"{format_duration(log.first_ns)} per {log.unit}, left out of all figures"


def _left_out(log: TrainingLogResult) -> str:
    """The first report, if it is far longer, or longer than few others: it may be what matters."""
    is_far = log.unit == "epoch" or (log.first_ns or 0) > _FAR_LONGER * (log.median_ns or 0)
    first = _first(log).partition(", left")[0]
    is_told = first and (is_far or log.num_steady <= _FEW_REPORTS)
    return f"The first report does not count: {first}." if is_told else ""


def _traced(report: Report) -> str:
    """Duration of traced steps, compared with that of logged iterations."""
    steps, log = report.step_time, report.training_log
    if not steps.num_steps or steps.median_ns is None or not log.median_ns or not report.run.ranks:
        return ""
    more, time = steps.median_ns / log.median_ns - 1, format_duration(steps.median_ns)
    return f"{time} in the trace ({100 * more:+.1f} % relative to the median)"


def _layout(log: TrainingLogResult) -> str:
    facts = [
        counted(log.world_size, "rank") if log.world_size else "",
        *(f"{axis} {log.mesh[axis]}" for axis in AXES if log.mesh.get(axis, 1) > 1),
        counted(log.num_micro_batches, "micro-batch") if log.num_micro_batches else "",
        f"batch {log.global_batch_size:,}" if log.global_batch_size else "",
        f"{log.sequence_length:,} tokens each" if log.sequence_length else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _pipeline(log: TrainingLogResult) -> str:
    who = f"the {log.timer_stage} stage" if log.timer_stage else "the rank of the timers"
    idle = f"{who} does not compute for {format_ratio(log.idle_ratio)} of an iteration"
    return "; ".join(filter(None, (idle * (log.idle_ratio is not None), ideal_sentence(log))))
