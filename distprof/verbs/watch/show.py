"""A watched job as a page, as one line, and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Literal

import msgspec

from distprof.bounds import table_beside
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.escape import headed, short_ranks
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted, facts_table, present, rows_table
from distprof.units import (
    NS_PER_S,
    capitalized,
    format_bytes,
    format_duration,
    format_ratio,
    name_ranks,
    sentence,
    signed_ratio,
    verb,
)
from distprof.verbs import Displayed
from distprof.verbs.watch import ON, WINDOW

JobState = Literal["waiting", "running", "stalled", "completed", "failed", "interrupted"]
ENDED: tuple[JobState, ...] = ("completed", "failed", "interrupted")


class Alert(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition that began or ended, as it is delivered."""

    schema: str = "distprof.alert/1"  # ``distprof.alert/1``.
    distprof_version: str  # Version of distprof that wrote it.
    # ``raised`` when the condition began; ``cleared`` when it ended.
    state: Literal["raised", "cleared"]
    kind: str  # Name of the alert in ``--alert``, for example ``slow-rank``.
    message: str  # The alert in one sentence.
    ranks: tuple[int, ...] = ()  # Affected ranks; empty if the alert concerns the whole job.
    step: int | None = None  # Last step known; None before the first.
    time_ns: int  # When the watcher noticed, ns since the epoch.
    source: str  # The run directory.

    def cleared(self, ranks: Collection[int], *, step: int | None, time_ns: int) -> Alert:
        """The alert that says this condition has ended for these ranks, or for the whole job."""
        return msgspec.structs.replace(
            self,
            state="cleared",
            message=sentence_on(ranks, f"no longer: {self.kind}"),
            ranks=tuple(sorted(ranks)),
            step=step,
            time_ns=time_ns,
        )


def sentence_on(ranks: Collection[int], words: str) -> str:
    """A message with its subject: the ranks, or the job if there are none."""
    who = capitalized(name_ranks(sorted(ranks))) if ranks else "The job"
    return f"{who}: {words}"


class LateRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that needs more own time than its peers."""

    rank: int  # Global rank.
    # Its own time per step, median of the window, ns. On GPU ranks a lower bound that includes
    # transfers.
    own_ns: int
    # Excess of its own time over the median of its peers, median of the window, ns. On GPU ranks a
    # lower bound.
    late_ns: int
    # The same as a share of its peers' own time. On GPU ranks the largest lower bound of its
    # lateness at a collective, as a share of the time that its peers need up to there.
    late_ratio: float
    num_above: int  # Steps of the window in which it was above the limit.
    is_slow: bool  # Whether these are enough steps to call it slow.
    # The largest part of the excess: ``no_cpu`` it waits for a CPU; ``input`` it waits for its
    # data; ``more_work`` it computes for longer. On GPU ranks ``device`` if neither of the first
    # two explains half of the excess: the GPU works for longer, or its work is launched later.
    cause: Literal["no_cpu", "input", "more_work", "device"]
    # Upper bound of ``late_ns`` on GPU ranks; None if ``late_ns`` is exact.
    late_most_ns: int | None = None


class LostRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank that ended or fell silent while the job continues."""

    rank: int  # Global rank.
    evidence: str  # Evidence of the loss, one sentence.
    last_step: int | None = None  # Last step that it completed; None before the first.


class ThrottledRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank whose GPU is throttled by heat or hardware."""

    rank: int  # Global rank.
    throttled_ratio: float  # Share of the last samples in which it was throttled.
    reasons: tuple[str, ...]  # NVML's names of the reasons, most frequent first.
    sm_clock_mhz: int | None = None  # SM clock in the last sample, MHz; None if unknown.


class MemoryOfRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rank that uses the most memory."""

    rank: int  # Global rank.
    used_bytes: int  # Memory in use, bytes.
    # ``device``: held by tensors on the accelerator; ``process``: resident CPU memory.
    where: Literal["device", "process"]


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overhead of the always-on probes, which the job measures on blocks of steps without them."""

    # Overhead as a share of the step without probes, median over the ranks; 0.01 is 1 %.
    ratio: float
    low: float  # Lower end of the 95 % confidence interval.
    high: float  # Upper end of the interval.
    num_ranks: int  # Ranks that measured it.


class WatchReport(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job at one moment. Windows are the last 40 steps that all ranks have reported."""

    schema: str = "distprof.watch/1"  # ``distprof.watch/1``.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The run directory.
    time_ns: int  # When the watcher looked, ns since the epoch.
    # ``waiting`` for a first step; ``running``; ``stalled`` if no rank has completed a step for
    # long; or how the job ended.
    state: JobState
    world_size: int | None  # World size of the job; None if unknown.
    num_ranks: int  # Number of ranks that have recorded data.
    step: int | None  # Last step that all ranks have reported; None before the first.
    silent_ns: int | None  # Time since a rank last reported a step, ns; None before the first.
    # Step time in the window, ns: the median; on GPU ranks the mean, because their CPUs run ahead
    # and wait only now and then.
    step_ns: int | None
    # Median step time of the job before the window, on GPU ranks of means over 20 steps; None while
    # there are too few steps.
    usual_step_ns: int | None
    # Tokens per second of all ranks in the window; None if not reported.
    tokens_per_s: float | None
    # Median own time as a share of the step; None if unknown. On GPU ranks a lower bound that
    # includes transfers.
    own_ratio: float | None
    # Share of the step that ranks wait for input, median over steps and ranks.
    input_ratio: float | None
    # The rank that waits longest for input, if it waits for 1 % of the step or more and 20 % longer
    # than the median rank; None otherwise.
    input_rank: int | None
    late: tuple[LateRank, ...]  # Slow ranks, then those most often above the limit; at most 8.
    lost: tuple[LostRank, ...]  # Ranks that ended or fell silent.
    throttled: tuple[ThrottledRank, ...]  # Ranks whose GPU is throttled, at most 8.
    memory: MemoryOfRank | None  # The rank that uses the most memory; None if unknown.
    alerts: tuple[Alert, ...]  # Alerts that are raised now.
    unknown: tuple[str, ...]  # What is unknown and why, one sentence each.
    notes: tuple[str, ...]  # Remarks on files, one sentence each.
    # Source of own time: ``cpu`` the CPU time of the training thread, ``collectives`` the durations
    # of collectives on the GPU; None if own time is unknown.
    own_known_from: Literal["cpu", "collectives"] | None = None
    # Overhead of the always-on probes; None if it has not been measured.
    probe_cost: ProbeCost | None = None
    # Share of steps at whose end the GPU had not finished the step before, mean over ranks; None if
    # it was not observed.
    gpu_behind_ratio: float | None = None


_TABLE = table_beside(__package__, "alerts.toml")
says = partial(sentence, _TABLE["said"])
_CAUSES, _WHERE, _ENDED = (_TABLE[name] for name in ("causes", "where", "ended"))
_MOST_LOST = 8
_MOSTLY_BEHIND = 0.5
_LEAST_SHARE = 0.05  # a lower bound below this says nothing


def watch_verdict(report: WatchReport) -> str:
    """The most important fact about the job now, in one sentence."""
    if report.lost:
        ranks = capitalized(name_ranks(each.rank for each in report.lost))
        lost = f"{ranks} {verb(report.lost, 'are')} lost: {report.lost[0].evidence}."
        return f"{_after(report)} {lost}".lstrip()
    if _after(report):
        return _after(report)
    if report.step is None:
        return "No step yet."
    slow = [late for late in report.late if late.is_slow]
    if slow:
        worst = max(slow, key=lambda late: late.late_ratio)
        more = len(slow) - 1
        of = _TABLE["said"]["peers" if worst.late_most_ns is None else "peers at a collective"]
        others = f" {counted(more, 'other rank')} {'is' if more == 1 else 'are'} also slow."
        cause, others = _CAUSES[worst.cause], others if more else ""
        return says("late", late=worst, least=_at_least(worst), of=of, cause=cause, others=others)
    if report.alerts:
        return f"{report.alerts[0].message}."
    if not report.late:
        return "Nothing stands out."
    late = report.late[0]  # more often than by chance, but not in enough steps
    return says("perhaps late", late=late, least=_at_least(late), window=WINDOW, on=ON)


def _at_least(late: LateRank) -> str:
    """The words before a lower bound; empty if the lateness is exact."""
    return "" if late.late_most_ns is None else "at least "


def _after(report: WatchReport) -> str:
    """Says that the job has ended or stalled; empty while it runs."""
    if report.state == "stalled":
        return f"No rank has completed a step for {format_duration(report.silent_ns)}."
    if report.state not in _ENDED:
        return ""
    at = "" if report.step is None else f" after step {report.step:,}"
    return f"{_ENDED[report.state]}{at}."


def _speed(report: WatchReport) -> str:
    """Steps per second, compared with earlier steps of the job."""
    if not report.step_ns:
        return ""
    text = f"{_rate(report.step_ns)}, {format_duration(report.step_ns)} per step"
    if not report.usual_step_ns:
        return f"{text}; compared with earlier steps after {2 * WINDOW} steps"
    change = report.step_ns / report.usual_step_ns - 1
    sign = "+" if change >= 0 else "−"
    changed = f"{sign}{format_ratio(abs(change))}"
    return f"{text}; before: {format_duration(report.usual_step_ns)} ({changed})"


def _rate(step_ns: int) -> str:
    return f"{NS_PER_S / step_ns:.3g} steps/s"


def _facts(report: WatchReport) -> TableView:
    memory = report.memory
    shares = "" if report.own_ratio is None else f"{format_ratio(report.own_ratio)} of the step"
    if report.own_ratio is not None and report.own_known_from == "collectives":
        shares = f"at least {shares}, from the durations of collectives on the GPU"
        shares = shares if report.own_ratio >= _LEAST_SHARE else ""
    waits = "" if report.input_ratio is None else f"{format_ratio(report.input_ratio)} of the step"
    if waits and report.input_rank is not None:
        waits += f", longest on rank {report.input_rank}"
    used = says("memory", memory=memory, where=_WHERE[memory.where]) if memory else ""
    cost = report.probe_cost
    probes = ""
    if cost is not None:
        interval = f"{signed_ratio(cost.low)} to {signed_ratio(cost.high)}"
        probes = f"cost {signed_ratio(cost.ratio)} of the step ({interval}), measured on "
        probes += counted(cost.num_ranks, "rank")
    tokens = "" if report.tokens_per_s is None else f"{report.tokens_per_s:,.0f} tokens/s"
    return facts_table(
        "Now",
        [
            ("speed", _speed(report)),
            ("tokens", tokens),
            ("own time", shares),
            ("input", waits),
            ("GPU", _pace(report)),
            ("memory", used),
            ("probes", probes),
            ("throttled", short_ranks([each.rank for each in report.throttled], 60)),
        ],
        caption=f"the last {WINDOW} steps",
    )


def _pace(report: WatchReport) -> str:
    """Whether GPUs are the limit; empty if that is unknown."""
    behind = report.gpu_behind_ratio
    if behind is None:
        return ""
    if behind > 0:
        lead = "sets the pace: " * (behind >= _MOSTLY_BEHIND)
        return f"{lead}more than a step behind at the end of {format_ratio(behind)} of steps"
    return "never a step behind: the CPU, its input or a wait in each step may set the pace"


def _tables(report: WatchReport) -> Iterator[TableView | None]:
    if report.step is not None:
        yield _facts(report)
    is_bound = report.own_known_from == "collectives"
    yield rows_table(
        "Late ranks",
        _LATE_AT_LEAST if is_bound else _LATE,
        report.late,
        caption=f"own time compared with peers, per step{', at least' if is_bound else ''}",
    )
    lost = report.lost[:_MOST_LOST]
    more = [each.rank for each in report.lost[_MOST_LOST:]]
    yield rows_table(
        "Lost ranks", _LOST, lost, notes=(f"Also lost: {name_ranks(more)}.",) if more else ()
    )
    yield rows_table("Alerts", _ALERTS, report.alerts)


_LATE = (
    Column("rank", "rank"),
    Column("late by", "late_ns"),
    Column("share", "late_ratio"),
    Column("own time", "own_ns", wide_only=True),
    Column("steps", lambda late: f"{late.num_above} of {WINDOW}"),
    Column("slow", lambda late: "yes" if late.is_slow else "not yet"),
    Column("why", lambda late: _CAUSES[late.cause], left=True, wrap=True),
)
_LATE_AT_LEAST = (*_LATE[:2], Column("at most", "late_most_ns"), *_LATE[2:])
_LOST = (
    Column("rank", "rank"),
    Column("last step", "last_step"),
    Column("evidence", "evidence", left=True, wrap=True),
)

_ALERTS = (Column("alert", "kind", left=True), Column("what", "message", left=True, wrap=True))


def _commands(report: WatchReport) -> tuple[tuple[str, str], ...]:
    if report.state in ("stalled",) or (report.lost and report.state == "running"):
        return (
            (f"distprof attach {report.source} --stacks", "where each rank is"),
            (f"distprof hang {report.source}", "which rank the others wait for"),
        )
    if report.state in _ENDED:
        return ((f"distprof analyze {report.source}", "where each step's time went"),)
    return ()


def _page(report: WatchReport, _: RenderOptions) -> Page:
    size = report.num_ranks if report.world_size is None else report.world_size
    parts = [report.source, counted(size, "rank"), report.state]
    if report.step is not None:
        parts.append(f"step {report.step:,}")
    headline, detail = headed(watch_verdict(report))
    return Page(
        verdict=headline,
        detail=detail,
        origin=" · ".join(parts),
        sentences=report.unknown,
        tables=present(_tables(report)),
        remarks=report.notes,
        commands=_commands(report),
    )


def one_line(report: WatchReport) -> str:
    """The current state of the job as one log line."""
    parts: list[str] = [report.state]
    if report.step is not None:
        parts.append(f"step {report.step:,}")
    if report.step_ns:
        parts.append(f"{_rate(report.step_ns)} ({format_duration(report.step_ns)})")
    if report.late:
        worst = report.late[0]
        parts.append(
            f"late {short_ranks([each.rank for each in report.late], 20)} "
            f"({_at_least(worst)}+{format_ratio(worst.late_ratio)})"
        )
    if report.input_ratio:
        parts.append(f"input {format_ratio(report.input_ratio)}")
    if report.memory is not None:
        parts.append(f"memory {format_bytes(report.memory.used_bytes)}")
    if report.throttled:
        parts.append(f"throttled {short_ranks([each.rank for each in report.throttled], 20)}")
    if report.lost:
        parts.append(f"lost {short_ranks([each.rank for each in report.lost], 20)}")
    if report.alerts:
        parts.append(f"ALERT {', '.join(alert.kind for alert in report.alerts)}")
    return " · ".join(parts)


WATCH = Document(
    kind=WatchReport,
    noun="a watched job",
    fix="look again: distprof watch DIR --once --format json -o FILE",
    page=_page,
)

ALERT = Document(
    kind=Alert,
    noun="an alert",
    fix="alerts are written by distprof watch --webhook and --exec",
    indent=0,
)
