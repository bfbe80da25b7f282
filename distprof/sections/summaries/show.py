"""Tables of other tools: collectives by class and rank, readiness of input, operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from distprof.bounds import table_beside
from distprof.escape import MAX_HEADLINE, shorten
from distprof.sections.base import VerdictText
from distprof.sections.nccl.show import nccl_verdict
from distprof.sections.parts import is_recorded
from distprof.sections.placement.show import machine_verdict
from distprof.sections.summaries import (
    COLLECTIVES,
    CollectiveSummaryResult,
    InputReadinessResult,
    OperatorTableResult,
    ScalingTableResult,
    TablePart,
    TableRow,
)
from distprof.sections.table import (
    Bar,
    Column,
    TableView,
    counted,
    first_rows,
    folded_ranks,
    ranks_table,
    rows_table,
)
from distprof.sections.telemetry.show import sensors_sentence
from distprof.units import capitalized, fill, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

_TABLE = table_beside(__package__, "known.toml")


def _say(sentence: str, **values: Any) -> str:
    """A sentence of the table, with its values."""
    return fill(_TABLE["say"][sentence], **values)


MAX_ROWS = 12
_MAX_NAME, _MAX_ITSELF = 60, 41
_NAMED_ROWS = 3


def summarised_classes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Collectives by class, most waiting first."""
    result = report.collective_summary
    return rows_table(
        "Collectives from another tool",
        (
            Column("operation", "kind", left=True),
            Column("group", lambda c: shorten(c.group, _MAX_NAME), left=True, wide_only=True),
            Column("size", "num_bytes"),
            Column("ranks", "num_ranks", wide_only=True),
            Column("calls", "num_calls"),
            Column("mean", "mean_ns"),
            Column("shortest", "shortest_ns"),
            Column("waiting", lambda c: c.wait_ns if c.is_compared else None, form="ns"),
            Column("last rank", lambda c: c.last_rank if c.is_compared else None, form="id"),
            Column("first rank", lambda c: c.first_rank if c.is_compared else None, form="id"),
        ),
        first_rows(
            result.classes, MAX_ROWS, show_all=show_all, noun="class", note="{} with --all."
        ),
        caption="mean call; shortest on the rank that arrives last",
        notes=result.unavailable,
    )


def summarised_ranks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Time by rank: in collectives, waiting for others, and making others wait."""
    return ranks_table(
        "Waiting in collectives",
        (
            Column("in collectives", "communication_ns"),
            Column("waits", "wait_ns"),
            Column("others wait for it", "blamed_ns"),
        ),
        report.collective_summary.ranks,
        show_all=show_all,
        caption="over all calls of the table",
    )


def readiness_table(report: Report, *, show_all: bool) -> TableView | None:
    """Readiness of input by rank."""
    result = report.input_readiness
    if not result.ranks:
        return None
    periods = [
        _say("period", period=one, samples=counted(one.num_samples, "sample"))
        for one in result.periods[: None if show_all else MAX_ROWS]
    ]
    return TableView(
        title="Input readiness",
        caption=f"{counted(result.num_samples, 'sample')}; 100 %: the loader never lags",
        columns=(
            Column("rank", left=True),
            Column("ready"),
            Column("", left=True, stretch=True),
            Column("least ready of all"),
        ),
        rows=folded_ranks(
            [one.rank for one in result.ranks],
            [(one.mean_ratio, one.least_ratio) for one in result.ranks],
            lambda values: (
                format_ratio(values[0]),
                Bar(ratio=values[0] or 0.0, key="idle_input"),
                format_ratio(values[1]),
            ),
            show_all=show_all,
        ),
        notes=(*periods, *result.unavailable),
    )


def table_parts_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Time of the device by what it does."""
    result = report.operator_table
    return rows_table(
        f"{result.device or 'Device'} time",
        (
            Column("what", "kind", left=True),
            Column("time", "device_ns"),
            Column("share", "ratio"),
            Column("kernels", "num_calls"),
        ),
        result.parts,
        caption="sum of durations: kernels may run at the same time",
    )


def operators_table(report: Report, *, show_all: bool) -> TableView | None:
    """Rows of a table of operators, longest first."""
    result = report.operator_table
    shown = result.rows if show_all else result.rows[:MAX_ROWS]
    left = result.num_rows - len(shown)
    return rows_table(
        "Operators from another tool",
        (
            Column("name", lambda row: shorten(row.name, _MAX_NAME), left=True),
            Column("calls", "num_calls"),
            Column("own CPU time", "self_cpu_ns"),
            Column(f"own {result.device or 'device'} time", "self_device_ns"),
        ),
        shown,
        notes=(*result.unavailable, *((f"{counted(left, 'more row')}.",) if left > 0 else ())),
    )


# The first lines of a report on tables of other tools: collectives by rank, input readiness ------

READY_RATIO = 0.9
_SCALES = 0.8
_WHERE = re.compile(r"(?:with(?:out)?|w/o|using|on|in|via|under|after|before|from) ", re.IGNORECASE)
_STRAGGLES = 1.1
_IN_A_NODE = 8  # More GPUs are usually in several nodes
_MOST_MOMENTS = 4
_SAME_SPEED = 0.95
_SAME = 0.97  # Throughput below this share of another is lower
MIN_WORK_RATIO = 0.3
MIN_KNOWN_RATIO = 0.25
_LITTLE = 0.02
"""Share of a step below which loading data, and work of the GPU, do not set its pace."""

MIN_STEP_BUSY_RATIO = 0.8
"""Share of a step that kernels take, below which the step waits for the CPU."""

MIN_BUSY_RATIO, MIN_SAVED_RATIO = 0.4, 0.2
MIN_LISTED_RATIO = 0.5
"""Below this share of the whole, a table does not show what takes most."""
_NEARLY, _ROUNDED, _ALSO, _DIFFERS = 0.8, 1.02, 1.1, 1.2
MIN_NAMED_RATIO, MIN_LAUNCH_RATIO, MIN_ALSO_RATIO = 0.08, 0.05, 0.15
"""Share of the CPU's time from which a name, launches and other kernels are worth a sentence."""

_STEP = "ProfilerStep"
_ORDINALS = ("second", "third", "fourth")
_LAUNCHING, _WAITING = "launching kernels", "waiting for the GPU"
_FEW_CALLS, _COLD_CALLS = 2, 10
_MANY_CALLS, _SHORT_NS, _SPAN_NS = 10_000, 5_000, 100_000
"""Kernels or copies this short, or with so little CPU time each, wait for their launches."""

_OWN_BUFFERS = _TABLE["work"]["the profiler's own buffers"]
_FOLDERS = re.compile(_TABLE["longer"])

_FEWEST_ROWS = 2
"""A table that shows fewer, and no total, is an excerpt that says nothing of the whole."""


def summaries_verdict(report: Report) -> VerdictText:
    """The verdict and the numbers behind it; None for other reports."""
    if not _is_alone(report):
        return None
    links = [said[0] for made in (nccl_verdict, machine_verdict) if (said := made(report))]
    scaling = scaling_lines(report.scaling_table, is_linked=bool(links))
    lines = [
        *_collectives(report.collective_summary),
        *_input(report.input_readiness),
        *scaling[:1],
        *links[: len(scaling)],
        *scaling[1:],
        *_with_second(report.operator_table),
        *report.operator_table.unavailable,
        *links[: not scaling],
        sensors_sentence(report),
    ]
    return lines[0], tuple(filter(None, lines[1:]))


def _is_alone(report: Report) -> bool:
    """Whether the report holds only other tools' tables of collectives, input or operators."""
    ranks = report.collective_summary.classes, report.input_readiness.num_samples
    others = report.scaling_table.counts, report.operator_table.num_rows
    return any((*ranks, *others)) and not (report.training_log.origin or is_recorded(report))


def summaries_origin(report: Report) -> str:
    """What each table holds."""
    if not _is_alone(report):
        return ""
    summary, readiness = report.collective_summary, report.input_readiness
    facts = []
    if summary.classes:
        facts.append(f"table of collectives · {counted(len(summary.ranks), 'rank')}")
        facts.append(f"{len(summary.classes):,} combinations of kind and size")
    if readiness.num_samples:
        facts.append(f"input readiness · {counted(len(readiness.ranks), 'rank')}")
        facts.append(counted(readiness.num_samples, "sample"))
    if rows := len(report.scaling_table.counts):
        of = report.scaling_table.of
        by = of.removesuffix("s") if report.scaling_table.names else f"the number of {of}"
        facts.append(f"throughput by {by} · {counted(rows, 'row')}")
    if report.operator_table.num_rows:
        facts.append(f"table of operators · {counted(report.operator_table.num_rows, 'row')}")
    return " · ".join([*facts, "no traces"])


def _collectives(result: CollectiveSummaryResult) -> list[str]:
    if not result.classes:
        return []
    if len(result.ranks) < _FEWEST_ROWS:
        return _of_one_rank(result)
    if result.wait_ratio is None:
        return ["The table of collectives has no collective whose ranks can be compared."]
    text = _say("waits", ratio=result.wait_ratio)
    if result.late_rank is not None:
        text += _say("late", ratio=result.blamed_ratio, rank=result.late_rank)
    worst = result.classes[0]
    size = f" of {format_bytes(worst.num_bytes)}" if worst.num_bytes is not None else ""
    return [f"{text}.", _say("waiting", row=worst, size=size)]


def _of_one_rank(result: CollectiveSummaryResult) -> list[str]:
    """Which operation takes the time in collectives, and whether it is waiting."""
    longest = max(result.classes, key=lambda one: one.mean_ns * one.num_calls)
    spent = sum(o.mean_ns * o.num_calls for o in result.classes if o.kind == longest.kind)
    whole = result.ranks[0].communication_ns
    if not whole:
        return ["The table of collectives has no times other than 0."]
    most = _say("kind", kind=capitalized(longest.kind), ratio=spent / whole, spent=spent, of=whole)
    if cut := [note for note in result.unavailable if " is cut in " in note]:
        return [_say("cut collectives", kind=longest.kind, spent=spent, of=whole), *cut]
    size = f" of {format_bytes(longest.num_bytes)}" if longest.num_bytes else ""
    calls = f"{counted(longest.num_calls, 'call')}{size}"
    detail = f"Longest are {calls}, with a mean of {format_duration(longest.mean_ns)}."
    if result.wait_ratio is None:
        return [most, detail, _TABLE["say"]["one rank"]]
    waiting = _say("waits", ratio=result.wait_ratio)
    if result.wait_ratio < 1 - _SCALES:
        return [f"{most} Only {waiting}: compare the rest with the speed of the network."]
    return [f"{waiting} {_TABLE['say']['for late ranks']}", most, detail]


def _input(result: InputReadinessResult) -> list[str]:
    if result.job_ratio is None:
        return []
    if result.job_ratio >= READY_RATIO:
        return [_say("ready", ratio=result.job_ratio)]
    text = _say("not ready", ratio=result.job_ratio)
    who = [period.rank for period in result.periods]
    if len(set(who)) > 1:
        order = [who[0], *(b for a, b in pairwise(who) if a != b)]
        names = ", then ".join(f"rank {rank}" for rank in order[:6])
        return [f"{text}.", f"The least ready rank changes: {names}."]
    which = f"mostly it is rank {who[0]}" if who else "which rank it is keeps changing"
    return [f"{text}; {which}."]


def scaling_lines(result: ScalingTableResult, *, is_linked: bool = False) -> list[str]:
    """What speeds of several numbers of GPUs, ways or moments say; empty without any."""
    if not result.counts:
        return []
    counts, rates, ratios, of = result.counts, result.rates, result.efficiency_ratio, result.of
    if of == "ranks":
        slowest, usual = round(1e9 / rates[0]), round(1e9 / median(rates))
        kind = "ranks alike" if slowest < _STRAGGLES * usual else "slowest rank"
        name = capitalized(result.names[0])
        said = _say(kind, name=name, ranks=len(rates), slowest=slowest, usual=usual)
        return [said, _TABLE["say"]["compare"]][: 1 + (kind == "slowest rank")]
    if of == "moments":
        each = ", then ".join(result.names[::-1][:_MOST_MOMENTS])
        return [_say("slower", ratio=rates[0] / rates[-1], each=each), _TABLE["slower"]]
    if result.names and rates[0] > _SAME_SPEED * rates[-1]:
        ratio, name = rates[0] / rates[-1], result.names[0]
        return [_say("ways alike", ways=len(rates), name=name, ratio=ratio)]
    if result.names:
        *others, fastest = result.names
        named = zip(others, rates[:-1], strict=True)
        shares = ", ".join(f"{name} {format_ratio(rate / rates[-1])}" for name, rate in named)
        is_where = len(rates) == 2 and all(map(_WHERE.match, result.names))
        kind = "ways" if others[1:] else "two places" if is_where else f"two {of}"
        slow, fast = (f"{o[0].lower()}{o[1:]}" if is_where else o for o in (others[0], fastest))
        values = {"ways": len(rates), "times": rates[-1] / rates[0], "shares": shares}
        said = _say(kind, fast=fast, slow=slow, **values)
        if len(said.partition(": ")[0]) > MAX_HEADLINE:
            said = _say(f"long {kind}", fast=fast, slow=slow, **values)
        known = (way["text"] for way in _TABLE["way"] if re.search(way["name"], " ".join(others)))
        told = " ".join((*result.names, *result.unavailable))
        why = (each["text"] for each in _TABLE["instead"] if re.search(each["said"], told))
        return [capitalized(said), *result.unavailable, *known, next(why, _TABLE["compare"])]
    if result.unavailable and rates[-1] >= _SAME * rates[0]:
        return _by_iterations(result)
    first, last, best = counts[0], counts[-1], counts[rates.index(max(rates))]
    text = f"Scaling is {format_ratio(ratios[-1])} efficient from {first:,} to {last:,} {of}"
    at = next((i for i, ratio in enumerate(ratios) if ratio < _SCALES), 0)
    if not at:
        return [f"{text}: throughput grows with the number of {of}."]
    if best == first and rates[-1] < _SAME * rates[0]:
        text = f"{last:,} {of} are slower than {first:,}"
    grows = rates[at] / rates[at - 1]
    change = _say("grows" if grows > 1 / _SAME else "falls" if grows < _SAME else "stays", by=grows)
    most = f" {best:,} {of} are faster than {last:,}." if first < best < last else ""
    kind = "nodes" if of in ("nodes", "workers") or counts[at] > _IN_A_NODE else "node"
    how = "" if is_linked else f", {_TABLE['say'][kind]}"
    return [
        f"{text}: from {counts[at - 1]:,} to {counts[at]:,} {of}, {change}.{most}",
        *result.unavailable,
        _say("why", count=counts[at], of=of, how=how),
    ]


def _named(row: TableRow) -> str:
    """The name of an operator or a function, without the folders of its file."""
    name, *_ = re.split(r", (?:stashed )?seq=", row.name.replace("...", "…"), maxsplit=1)
    return shorten(_FOLDERS.sub("", name), _MAX_NAME)


def _cpu_whole(result: OperatorTableResult) -> int | None:
    """CPU time of everything, ns: as printed, else what own times show; None without either."""
    known = result.self_cpu_ns or sum(row.self_cpu_ns for row in result.rows)
    return max(known, *(row.cpu_ns for row in result.rows)) if known else None


def _by_iterations(result: ScalingTableResult) -> list[str]:
    """How long iterations are: what that means for throughput depends on the batch."""
    first, last, of = result.counts[0], result.counts[-1], result.of
    before, after = first / result.rates[0], last / result.rates[-1]
    much = f"{format_ratio(abs(after / before - 1))} {'longer' if after > before else 'shorter'}"
    is_same = _SAME < after / before < 1 / _SAME
    how = f"about as long on {last:,} {of} as" if is_same else f"{much} on {last:,} {of} than"
    one, shared = of.removesuffix("s"), "slower" if after > before else "hardly faster"
    lengths = (format_duration(round(length * 1e9)) for length in (after, before))
    ratio = result.efficiency_ratio[-1]
    return [
        f"An iteration takes {how} on {first:,}: {', '.join(lengths)}.",
        _say("batches", one=one, ratio=ratio, first=first, last=last, of=of, shared=shared),
        _say("same batch", last=last, of=of),
    ]


def _known_work(result: OperatorTableResult) -> list[str]:
    """What takes most of the CPU's time, if a row tells; else the deepest function that does."""
    rows = sorted(result.rows, key=lambda row: row.cpu_ns)
    total = _cpu_whole(result)
    if total is None or not (result.self_cpu_ns or len({row.name for row in rows}) >= _FEWEST_ROWS):
        return []
    each = {name: min(ns, total) for name, ns in _by_name(result).items()}
    add = sum if _in_calls(result) else max  # calls of CUDA hold no others
    spent = {
        what: add([0, *(ns for name, ns in each.items() if re.search(known, name))])
        for what, known in _TABLE["work"].items()
    }
    outside = [row.self_cpu_ns for row in rows if row.name.startswith(_STEP)]
    spent["Python code outside of operators"] = sum(outside)
    longest = max(row.self_cpu_ns for row in rows)
    least = max(3 * longest / 2, MIN_KNOWN_RATIO * total)
    places = [r for r in rows if r.cpu_ns >= least and re.search(_TABLE["place"], r.name)]
    near_half = sorted(places, key=lambda r: (r.num_calls == 1, abs(2 * r.cpu_ns - total)))
    for row in near_half[:1] if max(spent.values()) < total / 3 else ():
        if row.num_calls > 1 or 2 * row.cpu_ns >= total:  # one call may hold all others
            spent[f"{_named(row)} and what it calls"] = row.cpu_ns
    most = max(spent.values())
    if most < max(MIN_KNOWN_RATIO * total, 1, longest):
        return []
    what = next(name for name, ns in spent.items() if ns >= _NEARLY * most)
    action = "".join(name for name, _ in result.actions[:1])
    if {*re.findall(r"[a-z]{5,}", what)} & {*re.findall(r"[a-z]{5,}", action.lower())}:
        return _advice(what, result)  # it is the action itself
    share = "Most" if 2 * spent[what] >= total else "The largest known part"
    share = share if result.self_cpu_ns else f"Of the rows shown, {share[0].lower()}{share[1:]}"
    where = f"the time{calls}" if (calls := _in_calls(result)) else "the CPU's time"
    where = f"the time of {shorten(action, _MAX_NAME)}" if action else where
    of = f"{format_duration(total)} ({format_ratio(spent[what] / total)})"
    if not result.self_cpu_ns and spent[what] == total:  # the row itself is all that is known
        share, of = "The longest row", "an unknown whole"
    said = f"{share} of {where} is {what}: {format_duration(spent[what])} of {of}."
    if what.endswith("and what it calls"):
        holds = _say("holds", what=what, where=where, much=_share(spent[what], total))
        said = holds if len(said.partition(": ")[0]) > MAX_HEADLINE else said
        others = [r for r in places if r.cpu_ns < _NEARLY * total and r not in near_half[:1]]
        return [said, *([_say("also hold", rows=_longest(others, "cpu_ns"))] * bool(others))]
    return [said, *_advice(what, result)]


def _in_calls(result: OperatorTableResult) -> str:
    """Where the time is, if all rows are calls of the CPU to CUDA or HIP; else empty."""
    names = [row.name for row in result.rows if row.cpu_ns or row.self_cpu_ns]
    of = "CUDA" if any(name.startswith("cu") for name in names) else "HIP"
    return f" in calls of {of}" * all(re.match(_TABLE["call"], name) for name in names)


def _of_action(result: OperatorTableResult) -> list[str]:
    """How long actions take that are profiled each alone, which shows no share of training."""
    (name, ns), *others = ((shorten(name, _MAX_NAME), ns) for name, ns in result.actions)
    calls = max(result.rows, key=lambda row: row.cpu_ns).num_calls or 1
    named = ", ".join(_say("action", name=name, ns=ns) for name, ns in others[:_NAMED_ROWS])
    return [
        _say("calls of an action", name=name, ns=ns, calls=counted(calls, "call"), each=ns / calls),
        *filter(None, (named and f"Other actions: {named}.",)),
        *_known_work(result),
        _say("inside", rows=_longest(result.rows, "self_cpu_ns")),
        _TABLE["action"],
    ]


def _by_name(result: OperatorTableResult) -> dict[str, int]:
    """CPU time by name, with what it calls, ns; some tables have a row for each call."""
    each: dict[str, int] = {}
    is_counted = any(row.num_calls for row in result.rows)
    for row in result.rows:
        name, before = _named(row), each.get(_named(row), 0)
        each[name] = before + row.cpu_ns if is_counted else max(before, row.cpu_ns)
    return each


def _of_the_top(result: OperatorTableResult) -> list[str]:
    """What the first rows of a sorted table and its longest name say, without most of the rows."""
    field, cpu_ns, said = result.sorted_by, result.self_cpu_ns or 0, list[str]()
    chip, whole = ("GPU", result.self_device_ns or 0) if "device" in field else ("CPU", cpu_ns)
    rows = [row for row in result.rows if field and getattr(row, field) < _NEARLY * whole]
    rows = [row for row in rows if chip == "GPU" or "::" in row.name] or rows  # no ranges
    top = max(rows, key=lambda row: getattr(row, field), default=None)
    each = {name: ns for name, ns in _by_name(result).items() if not name.startswith(_STEP)}
    each = {name: each[name] for name in each if re.search("::|#", name)} or each  # no ranges
    known = {name: ns for name, ns in each.items() if ns < _NEARLY * cpu_ns}
    on_gpu = result.self_device_ns or 0
    own = max((part.device_ns for part in result.parts if part.num_calls), default=0)
    is_longer = own * cpu_ns > max(known.values(), default=0) * on_gpu
    is_gpu = bool(result.parts) and (on_gpu > _NEARLY * cpu_ns or is_longer)
    known = {} if is_gpu else known
    name = max(known, key=lambda one: known[one], default="")
    if top:
        what = _named(top) + " itself" * field.startswith("self")
        share = _share(getattr(top, field), whole)
        said += [_say("first", what=what, chip=chip, share=share), *_advised(top)]
    if known and (not top or name != _named(top)) and known[name] >= MIN_NAMED_RATIO * cpu_ns:
        calls = sum(row.cpu_ns > 0 for row in result.rows if _named(row) == name)
        who = f"{name} and what it calls take" if calls == 1 else f"{calls} rows of {name} take"
        said.append(f"{who} {_share(known[name], cpu_ns)} on the CPU.")
        said += [_TABLE["say"][_WAITING]] * bool(re.search(_TABLE["work"][_WAITING], name))
    return said + _launches(result) or _largest_shown(result, is_gpu=is_gpu)


def _largest_shown(result: OperatorTableResult, *, is_gpu: bool) -> list[str]:
    """The row with the largest known share of the GPU's or the CPU's own time, if notable."""
    rows = [row for row in result.rows if row.kind != "span" and not row.name.startswith(_STEP)]
    known = {"self_device_ns": (result.self_device_ns or 0) * result.has_device_total}
    known |= {} if is_gpu else {"self_cpu_ns": result.self_cpu_ns or 0}
    shares = [(getattr(r, at) / of, at, r) for r in rows for at, of in known.items() if of]
    ratio, at, top = max(shares, key=lambda one: one[0], default=(0.0, "", None))
    if not top or not MIN_NAMED_RATIO <= ratio <= 1:
        return []
    chip, spent = _chip(result) if "device" in at else "CPU", getattr(top, at)
    share = f"{_share(spent, known[at])}{_described(top, spent)}"
    return [_say("longest shown", name=_named(top), chip=chip, share=share), *_advised(top)]


def _launches(result: OperatorTableResult) -> list[str]:
    """What launches say: many with little time from one to the next are of kernels that short."""
    rows = [row for row in result.rows if re.search(_TABLE["work"][_LAUNCHING], row.name)]
    calls, spent = (sum(getattr(r, f) for r in rows) for f in ("num_calls", "self_cpu_ns"))
    whole = result.self_cpu_ns or 0
    is_long = spent > calls * _SPAN_NS
    is_fast = calls >= _MANY_CALLS and whole <= calls * _SPAN_NS
    is_said = is_long or (is_fast and any("::" in row.name for row in result.rows))
    if not calls or not is_said or not 0 < MIN_LAUNCH_RATIO * whole <= spent <= whole:
        return []
    kind, each = ("long launches", spent) if is_long else (_LAUNCHING, whole)
    said = _say(kind, calls=calls, share=_share(spent, whole), each=each / calls)
    return [said, _TABLE["say"][f"after {kind}"]]


def _share(spent: int, whole: int) -> str:
    return f"{format_duration(spent)} of {format_duration(whole)} ({format_ratio(spent / whole)})"


def _advice(what: str, result: OperatorTableResult) -> list[str]:
    """What to do about work of the CPU, unless a row shows that it is not loading data."""
    loader, step = result.loader_ns, result.step_ns or 0
    if loader is not None and loader < _LITTLE * step and what.startswith("Python code"):
        what = "Python code, and no loading of data"
    if what == _LAUNCHING and (launches := _launches(result)):
        return launches
    return [fill(told, loader=loader) for told in (_TABLE["advice"].get(what),) if told]


def _of_step(result: OperatorTableResult) -> list[str]:
    """How much of a step the GPU works at most, of a table without own times of the GPU."""
    steps = [row for row in result.rows if row.name.startswith(_STEP) and row.num_calls]
    busy = sum(row.device_ns for row in steps) / (sum(row.num_calls for row in steps) or 1)
    if not busy or not result.step_ns or busy >= MIN_STEP_BUSY_RATIO * result.step_ns:
        return []
    return [_say("step", step=result.step_ns, busy=round(busy), ratio=busy / result.step_ns)]


def _of_one_row(result: OperatorTableResult) -> list[str]:
    """The row that takes most of the CPU's time without what it calls, if one does."""
    top = max(result.rows, key=lambda row: row.self_cpu_ns)
    whole = _cpu_whole(result) or 0
    ratio = top.self_cpu_ns / (whole or 1)
    around = _around(result) if ratio < MIN_WORK_RATIO or top.cpu_ns >= _NEARLY * whole else []
    is_one = len(result.rows) < _FEWEST_ROWS and not result.self_cpu_ns
    if around or ratio < MIN_WORK_RATIO or is_one:
        return around
    where = _in_calls(result) or " in the rows shown" * (not result.self_cpu_ns)
    alike = sum(row.self_cpu_ns for row in result.rows if row.kind == top.kind)
    if alike > _ALSO * top.self_cpu_ns and top.kind in _TABLE["kernel"]:
        values = {"name": _named(top), "alone": top.self_cpu_ns, "share": _share(alike, whole)}
        return [_say("family", kind=capitalized(top.kind), where=where, **values), *_advised(top)]
    spent = {"spent": top.self_cpu_ns, "of": whole}
    if re.match(r"(?:threading|queue|selectors)\.py\(\d+\): (?:wait|get|select|join)", top.name):
        return [_say("idle_thread", name=_named(top), **spent)]
    name = re.sub(r"^([^()]+)\(.*…$", r"\1(…)", shorten(_named(top), _MAX_ITSELF))
    return [_say("itself", name=name, ratio=ratio, where=where, **spent), *_advised(top)]


def _around(result: OperatorTableResult) -> list[str]:
    """The innermost operator, or only row, that takes nearly all time with what it calls."""
    whole, is_one = result.self_cpu_ns or 0, len(result.rows) < _FEWEST_ROWS
    named = (row for row in result.rows if is_one or re.match(r"\w{1,99}::", row.name))
    rows = (row for row in named if row.cpu_ns >= _NEARLY * whole > 0)
    inner = min(rows, key=lambda row: (row.cpu_ns, -row.self_cpu_ns), default=None)
    if not inner or inner.self_cpu_ns >= _NEARLY * whole:
        return []
    ratio, own = inner.cpu_ns / whole, inner.self_cpu_ns / whole
    return [_say("around", name=_named(inner), ratio=ratio, own=own), *_advised(inner)]


def _longest(rows: Sequence[TableRow], field: str) -> str:
    """The rows with the longest times, and, if the table counts them, their calls."""
    order = sorted(rows, key=lambda row: -getattr(row, field))[:_NAMED_ROWS]
    return ", ".join(
        f"{_named(row)} ({format_duration(getattr(row, field))}"
        f"{', ' + counted(row.num_calls, 'call') if row.num_calls else ''})"
        for row in order
        if getattr(row, field)
    )


def _cpu_rows(result: OperatorTableResult) -> list[str]:
    """What takes time, of a table without a row that has own time on the GPU."""
    lacks = "No row of the table has own time on the GPU." if result.device else ""
    is_own = any(row.self_cpu_ns for row in result.rows)
    what, field = "CPU", "self_cpu_ns" if is_own else "cpu_ns"
    on_gpu, on_cpu = (sum(getattr(r, f"{p}_ns") for r in result.rows) for p in ("device", "cpu"))
    longest = max(max(row.cpu_ns, row.device_ns) for row in result.rows)
    is_known = result.self_device_ns or longest >= _LITTLE * (result.self_cpu_ns or 0)
    if on_gpu > _LITTLE * on_cpu and is_known:
        what, field = "GPU", "device_ns"
        lacks = lacks or "The table has only GPU times that include what an operator calls."
    rows = sorted(result.rows, key=lambda row: -getattr(row, field))
    if not is_own and rows[0].cpu_ns and re.search(r":\d{1,6}\(", rows[0].name):
        return [_TABLE["say"]["zeros"]]
    known = _known_work(result) or _of_one_row(result) * (what == "CPU" and not lacks)
    whole = result.self_cpu_ns if what == "CPU" else result.self_device_ns
    shown = sum(getattr(row, field) for row in rows) / (whole or 1)
    if whole and shown < MIN_LISTED_RATIO:
        known = known or _of_the_top(result)
        known = [*known, _cut(what, shown, is_known=bool(known))]
    elif field != "self_cpu_ns" and len(rows) >= _FEWEST_ROWS:
        most = _SAME_SPEED * whole if whole else max(row.cpu_ns for row in rows) + 1
        parts = [row for row in rows if row.num_calls > 1 or row.cpu_ns < most]  # not the whole
        calls = [row for row in parts if not row.name.startswith(_STEP)]
        known = [*known, *_with_calls(calls or rows, field, what, (what == "CPU" and whole) or 0)]
    elif whole and not known and len(rows) >= _FEWEST_ROWS:
        share = _share(rows[0].self_cpu_ns, whole)
        known = _launches(result) or [_say("spread", name=_named(rows[0]), share=share)]
    is_of_torch = any(row.name.startswith("aten::") for row in rows)
    if not (lacks or on_gpu):
        lacks = f"The table has only CPU times{_TABLE['record'] * is_of_torch}."
    if len({row.name for row in result.rows}) < _FEWEST_ROWS and not result.self_cpu_ns:
        lacks = _TABLE["say"]["few rows"]
    if not (named := _longest(rows, field)):
        return [*known, _TABLE["say"]["all zero"]]
    own = "own " * (field == "self_cpu_ns")
    said = [lacks, f"Most {own}{what} time: {named}."][:: -1 if what == "GPU" else 1]
    return [*known, " ".join(filter(None, said))]


def _with_calls(rows: list[TableRow], field: str, what: str, whole: int) -> list[str]:
    """The longest row, of rows whose times include what they call."""
    top, most, calls = rows[0], getattr(rows[0], field), rows[0].num_calls
    equals = [row for row in rows[1:] if row.num_calls == calls]
    parts = sum(getattr(row, field) for row in equals)
    is_whole = _NEARLY * most <= parts <= _ROUNDED * most
    if is_whole and re.search(_TABLE["whole"], top.name) and equals[1:]:  # its parts
        share = _share(getattr(equals[0], field), most)
        told = _say("part", name=_named(equals[0]), whole=_named(top), share=share)
        return [told, *_advised(equals[0])]
    alike = (row for row in equals if len({row.kind, top.kind, "computation"}) < 3)  # one kind
    inside = [row for row in alike if getattr(row, field) >= _SAME_SPEED * most]
    each = f" in {calls:,} calls of {format_duration(most / calls)}" if calls > 1 else ""
    text = f"{_named(top)} and what it calls take longest on the {what}"
    of = f" of {format_duration(whole)} ({format_ratio(most / whole)})" if whole >= most > 0 else ""
    shown = ", of the rows shown" * (2 * most < whole or not of)
    said = [f"{text}: {format_duration(most)}{of}{each}{shown}.", *_advised(top)]
    nested = _say("nested", names=", ".join(map(_named, inside[:_MOST_MOMENTS])))
    return [*said, *[nested] * bool(inside)] if most else []


def _shown_of_cpu(result: OperatorTableResult) -> float:
    """Share of the CPU's own time in the rows; 1 if the total of the GPU is known."""
    if result.has_device_total or not (result.parts and result.self_cpu_ns):
        return 1.0
    return sum(row.self_cpu_ns for row in result.rows) / result.self_cpu_ns


def _busy_ratio(result: OperatorTableResult) -> float | None:
    """Time of kernels relative to that of the CPU; None if the table does not show both."""
    own_ns = sum(row.self_cpu_ns for row in result.rows if re.search(_OWN_BUFFERS, row.name))
    cpu_ns = (result.self_cpu_ns or 0) - own_ns
    if cpu_ns <= 0 or _shown_of_cpu(result) < MIN_LISTED_RATIO:
        return None
    if result.self_device_ns:
        return result.self_device_ns / ((result.step_ns or 0) * (result.num_steps or 0) or cpu_ns)
    around = [row.device_ns for row in result.rows if row.cpu_ns >= _NEARLY * cpu_ns]
    return max(around, default=0) / cpu_ns or None


def _is_busy(result: OperatorTableResult) -> bool:
    """Whether the kernels that are listed alone take a large part of the steps or CPU time."""
    listed = sum(part.device_ns for part in result.parts if part.num_calls is not None)
    steps = max((row.cpu_ns for row in result.rows if row.name.startswith(_STEP)), default=0)
    return listed >= MIN_BUSY_RATIO * (steps or result.self_cpu_ns or 0) > 0


def _with_second(result: OperatorTableResult) -> list[str]:
    """What a table says, and the one after it; first how their times differ, if that is known."""
    said, second = [*result.most_memory, *_operators(result)], result.second
    spans = [r for r in result.rows if r.kind == "span" and not r.name.startswith(_STEP)]
    said += [_say("spans", rows=_longest(spans, "self_device_ns"))] * bool(spans)
    if result.rank is not None:
        return [f"Rank {result.rank}: {said[0]}", *said[1:]]
    if second is None:
        return said
    others = [second]
    while others[-1].second and len(others) < len(_ORDINALS):
        others.append(others[-1].second)
    each = zip(_ORDINALS, map(_operators, others), strict=False)
    there = [f"The {which} table: {' '.join(told[:2])}" for which, told in each]
    chip, wholes = _compared_times(result, second)
    least, most = sorted(wholes)
    if not least:
        return [said[0], *there, *said[1:]]
    kind = "longer there" if wholes[1] > wholes[0] else "shorter there"
    kind = kind if most > _ALSO * least else "alike there"
    times = {"most": most, "least": least, "first": wholes[0], "second": wholes[1]}
    differs = _say(kind, chip=chip, ratio=most / least, **times)
    lead = [differs, said[0]] if most > _DIFFERS * least else [said[0], differs]
    return [*lead, *there, *said[1:]]


def _compared_times(*tables: OperatorTableResult) -> tuple[str, list[int]]:
    """Times of two tables: of the GPU, or of the CPU if that is longer and alone differs."""
    devices = [(table.self_device_ns or 0) * table.has_device_total for table in tables]
    hosts = [table.self_cpu_ns or 0 for table in tables]
    alike = max(devices) <= _ALSO * min(devices) and max(devices) < max(hosts)
    differ = max(hosts) > _DIFFERS * min(hosts) > 0
    return ("GPU", devices) if all(devices) and not (alike and differ) else ("CPU", hosts)


def _operators(result: OperatorTableResult) -> list[str]:
    if not result.num_rows:
        return []
    if result.actions:
        return _of_action(result)
    num, each = result.num_steps, result.step_ns
    steps = [_say("steps", steps=counted(num, "step"), ns=each)] if num and each is not None else []
    busy = _busy_ratio(result) or 1.0
    reads = (row for row in result.rows if re.search(_TABLE["reads"], row.name))
    read_ns = max((row.cpu_ns for row in reads if row.num_calls > _COLD_CALLS), default=0)
    is_drained = min(read_ns / (result.self_cpu_ns or 1), 1 - busy) > MIN_SAVED_RATIO
    lead, known = [], _known_work(result)
    if busy < _LITTLE and _in_calls(result) and (calls := _longest(result.rows, "self_cpu_ns")):
        return [_say("start", table=result, calls=calls)]
    is_waiting = _WAITING in "".join(known[:1])
    if busy < MIN_BUSY_RATIO or (is_drained and is_waiting):
        of = "steps'" if steps and result.self_device_ns else "CPU's"
        idle = _say("idle", busy=busy, of=of)
        if is_waiting:
            known, idle = known[:1], _say("idle after waits", busy=busy, of=of)
        called = _of_one_row(result)
        known = known or called * bool(re.match(_TABLE["call"], "".join(called)))
        is_first = known and re.match("Most of|.* itself ", known[0]) and "(100 %)" not in known[0]
        lead = [*known, idle] if is_first or is_waiting else [idle, *known]
        if 0 < max(row.num_calls for row in result.rows) <= _FEW_CALLS:
            lead.append(_TABLE["first"])
    first = next((part for part in result.parts if part.num_calls is not None), None)
    if first is None:
        return [*_of_step(result), *lead, *_cpu_rows(result), *steps]
    chip = _chip(result)
    if len(result.rows) < _FEWEST_ROWS and not result.has_device_total:
        longest = _longest(result.rows, "self_device_ns")
        return [*lead, f"{_TABLE['say']['few rows']} Most {chip} time: {longest}.", *steps]
    listed = sum(part.ratio for part in result.parts if part.num_calls is not None)
    shown = _shown_of_cpu(result)
    if shown < MIN_LISTED_RATIO or listed < MIN_LISTED_RATIO:
        cut = ("CPU", shown) if shown < MIN_LISTED_RATIO else (chip, listed)
        known = lead or ([] if _is_busy(result) else known)
        sorted_out = [] if known else _of_the_top(result)
        return [*known, *sorted_out, _cut(*cut, is_known=bool(sorted_out)), *steps]
    return [*lead, *_most(result, first), *steps]


def _most(result: OperatorTableResult, first: TablePart) -> list[str]:
    """What takes the device most: a row, or kernels that do the same."""
    chip, whole, spent = _chip(result), result.self_device_ns or 0, first.device_ns
    together = sum(part.device_ns for part in result.parts if part.kind in COLLECTIVES)
    if together > spent:
        said = _say("collectives", chip=chip, share=_share(together, whole))
        return [said, _TABLE["communication"]["trace"]]
    laid = sum(row.self_device_ns for row in result.rows if re.search(_TABLE["layout"], row.name))
    others = (("also", together), ("layouts", laid))
    also = [_say(w, share=_share(ns, whole)) for w, ns in others if ns > MIN_ALSO_RATIO * whole]
    is_alone = {part.kind for part in result.parts} == {"copies"}
    is_unknown = first.kind == "computation"
    top = next((row for row in result.rows if is_unknown or row.kind == first.kind), result.rows[0])
    if top.kind == "copies and casts":  # the copy of memory that it mostly is
        copies = (row for row in result.rows if row.kind == "copies")
        top = next((r for r in copies if r.self_device_ns >= _NEARLY * top.self_device_ns), top)
    is_most, is_named = 2 * top.self_device_ns >= whole, first.kind in _TABLE["kernel"]
    if (is_most and is_named) or is_unknown or is_alone:  # of names that say nothing
        spent = top.self_device_ns
        kind = "copies alone" if is_alone else "most" if is_most else "longest shown"
        share = _share(spent, whole) + _described(top, spent)
        return [_say(kind, name=_named(top), chip=chip, share=share), *also, *_of_top(top)]
    is_part = len(result.rows) > 1 and spent > top.self_device_ns >= MIN_WORK_RATIO * whole
    each = f", of which {_named(top)} takes {format_duration(top.self_device_ns)}" * is_part
    most = "Most" if 2 * spent >= whole else "The largest part"
    share = _share(spent, whole) + each
    said = _say("most of a kind", most=most, name=first.kind, chip=chip, share=share)
    return [said, *also, *_of_top(top)]


def _chip(result: OperatorTableResult) -> str:
    return "GPU" if result.device in ("", "CUDA", "device") else result.device


def _described(row: TableRow, spent: int) -> str:
    """What a row does by its name, in how many calls."""
    what = row.kind if row.kind != "computation" else ""
    if row.num_calls > 1:
        what += f" in {row.num_calls:,} calls of {format_duration(spent / row.num_calls)}"
    return what and f", {what.strip()}"


def _advised(top: TableRow) -> list[str]:
    """What to do about a kernel or operator, by its name; few calls on the CPU are often cold."""
    told = [one["text"] for one in _TABLE["copy"] if re.search(one["name"], top.name)]
    is_cold = 0 < top.num_calls <= _COLD_CALLS and not (top.self_device_ns or top.device_ns)
    return [_TABLE["first"]] if told and is_cold else told


def _of_top(top: TableRow) -> list[str]:
    """What to do about the row that takes the GPU longest, if that is known."""
    are_short = top.num_calls >= _MANY_CALLS and top.self_device_ns < _SHORT_NS * top.num_calls
    return _advised(top) + [_TABLE["say"]["short calls"]] * are_short


def _cut(chip: str, listed: float, *, is_known: bool = False) -> str:
    """What a table without most of its rows leaves open: all, unless one of them says enough."""
    kind, by = "cut, but known" if is_known else "cut", {"GPU": "cuda"}.get(chip, chip.lower())
    return _say(kind, chip=chip, ratio=listed, left=min(1 - listed, 0.999), by=by)  # not all
