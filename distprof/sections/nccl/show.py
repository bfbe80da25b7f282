"""Contents of NCCL's logs: paths, settings and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distprof.artefacts.record import grouped
from distprof.escape import MAX_HEADLINE, shorten
from distprof.run.logs import ASSUMED_GB_S
from distprof.sections.base import VerdictText
from distprof.sections.ending import STUCK
from distprof.sections.nccl import (
    BETWEEN,
    INSIDE,
    SAYS,
    NcclChoices,
    NcclGroup,
    NcclHost,
    NcclResult,
    NcclTransport,
    different_networks,
    has_gdr_at_one_end,
    is_of_one_host,
    network_name,
    over_cards,
    why_not_fast,
)
from distprof.sections.parts import is_recorded
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table
from distprof.terms import NcclRemark
from distprof.units import capitalized, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report


_NAMED_WARNINGS = 3
_FAST_PATHS = {"NVL", "NVB", "C2C", "XGMI"}
_SLOW_PATHS = ("SYS", "PHB", "PXB", "PIX")
_MOST_CARDS = 20
"""Cards of a host, without virtual functions."""
_MANY = 0.1
"""Share of connections through CPU memory that the verdict begins with."""


def nccl_verdict(report: Report) -> VerdictText:
    """The verdict and its reasons; None for other reports."""
    result = report.nccl
    says_nothing = not (result.transports or result.networks or _topology(result))
    if not _is_alone(report) or (says_nothing and report.placement.machines):
        return None  # how the GPUs are connected says more
    line = _line(result)
    near, _, fix = next(told(result, "hardware next to it"), "").partition(". ")
    why = (
        result.tested,
        _plugin(result),
        *told(result),
        _init(result),
        _warnings(result),
        *(() if result.tested else report.ending.alternatives),
    )
    more = [one for one in why if one and one not in line and not (fix and one.endswith(fix))]
    return (f"{near}.", (fix, line, *more)) if near else (line, tuple(more))


def known_network(report: Report) -> str:
    """What NCCL's lines say about connections, of a job that hung or failed in one of them."""
    result, ending = report.nccl, report.ending
    is_near = ending.state == STUCK or ending.cause in SAYS["shown_with"]
    line = _line(result) if result.transports or _topology(result) else _chosen(result)
    said = " ".join([line, *told(result, "hardware")]).strip()
    return f"NCCL's lines: {said}" if is_near and said else ""


def _is_alone(report: Report) -> bool:
    """Whether the report holds only NCCL's logs."""
    return report.nccl.num_files > 0 and not is_recorded(report)


def nccl_origin(report: Report) -> str:
    """Number of log files and jobs."""
    if not _is_alone(report):
        return ""
    what = "NCCL logs" if report.nccl.num_texts else "settings of NCCL"
    facts = (f"{what} from {counted(report.nccl.num_files, 'file')}", jobs_fact(report.nccl))
    return " · ".join([*filter(None, facts), "no timings"])


def jobs_fact(result: NcclResult) -> str:
    """The number of jobs, which share no communicator; empty for one job."""
    return f"{result.num_jobs:,} jobs that share no communicator" * (result.num_jobs > 1)


def transport_name(way: NcclTransport) -> str:
    """For example ``NET/IB with GPUDirect RDMA``."""
    return f"{way.transport} with GPUDirect RDMA" if way.has_gdr else way.transport


def _line(result: NcclResult) -> str:
    parts = [_share(result, BETWEEN), _share(result, INSIDE)]
    line = "; ".join(part for part in parts if part)
    if line:
        chosen = "" if parts[0] or result.is_on_one_host else _chosen(result)
        return f"{capitalized(line)}. {chosen}".rstrip()
    if topology := _topology(result):
        return f"{_chosen(result)} {topology}".lstrip()
    plugin = _plugin(result)
    warned = plugin if "Libfabric" in result.missing_networks else _warnings(result)
    known = " ".join(filter(None, (warned, _chosen(result)))) or plugin
    return f"{known} {next(told(result), '')}".strip()


def told(result: NcclResult, about: str = "") -> Iterator[str]:
    """What follows from what a log shows and from what it lacks, of one subject or of all."""
    shown = _shown(result)
    for row in SAYS["told"]:
        needed, refused = set(row.get("shown", ())), set(row.get("lacks", ()))
        is_shown = needed <= shown.keys() and not refused & shown.keys()
        if is_shown and about in ("", row.get("about")):
            yield row["text"].format_map(shown)


def _shown(result: NcclResult) -> dict[str, str]:
    """What a log shows, by the names in ``says.toml``, with the text of some."""
    ways = result.transports
    inside = [way for way in ways if way.where == INSIDE]
    near = {card for host in result.hosts if "Socket" in host.networks for card in host.cards}
    near = set(filter(is_of_one_host, near))
    names = [each.name for each in (*result.settings, *result.remarks)]
    is_alone = result.num_hosts == 1 and not result.has_several_hosts
    warned = "\n".join(warning.text for warning in result.warnings)
    paths = set(result.paths) - {"LOC"}
    is_linked = paths <= _FAST_PATHS
    slow = [path for path in _SLOW_PATHS if path in paths] or sorted(paths)
    facts: dict[str, object] = {
        "connections": ways,
        "inside": inside,
        "between": len(inside) < len(ways),
        "indirect": any(way.transport[:3] != "P2P" and not way.has_gdr for way in ways),
        "shared memory": any(way.transport[:3] == "SHM" for way in inside),
        "sockets inside": any(way.transport.endswith("Socket") for way in inside),
        "peer access": any("P2P" in name or name == NcclRemark.PEER_OFF for name in names),
        "one host": result.is_on_one_host,
        "failed plug-in": "Libfabric" in result.missing_networks and not result.networks,
        "no RDMA device": "IB" in result.missing_networks and not result.networks,
        "one rank": result.groups[:1] and result.groups[0].num_ranks == 1,
        "several hosts": result.has_several_hosts and not result.is_on_one_host,
        "network of a host": result.networks and is_alone and not result.is_on_one_host,
        "topology": _topology(result),
        "linked GPUs": is_linked and " and ".join(sorted(paths)),
        "GPUs on PCIe": not paths & _FAST_PATHS and "".join(slow[:1]),
        "far card": result.card_path and SAYS["beyond"].get(result.card_path[1]),
        "far peer": result.peer_path and SAYS["beyond"].get(result.peer_path[1]),
        "tested": result.tested,
        "network": result.networks,
        "unknown": result.num_unknown and f"{result.num_unknown:,} of {result.num_texts:,}",
        "assumed speed": result.card_path and result.card_path[0] == ASSUMED_GB_S,
        "interfaces": not result.is_on_one_host and ", ".join(sorted(near)[:_NAMED_WARNINGS]),
        "many cards": any(host.links and len(host.cards) > _MOST_CARDS for host in result.hosts),
        "two kinds": any({"IB", "RoCE"} <= {*"/".join(h.links).split("/")} for h in result.hosts),
        **{remark.name: remark.value for remark in result.remarks},
        **{name: re.search(sign, warned) for name, sign in SAYS["facts"].items()},
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _chosen(result: NcclResult) -> str:
    """The network that all processes chose; empty if unknown."""
    has_memory = not any(s.name == "NCCL_SHM_DISABLE" and s.value == "1" for s in result.settings)
    if result.groups[:1] and result.groups[0].num_ranks == 1:
        return "Each communicator has a single rank, which sends nothing."
    if result.is_on_one_host and has_memory:
        return "All ranks are on one host, so they do without the network."
    if not result.networks:
        return SAYS["no_rdma"] if "IB" in result.missing_networks else ""
    if differ := different_networks(result):
        return f"Hosts chose different networks: {differ}. NCCL cannot connect them."
    reason = why_not_fast(result) if result.networks == ("Socket",) else ""
    why = f" because {reason}" if reason else ""
    begin = "Between nodes, NCCL uses" if result.has_several_hosts else "NCCL's network is"
    text = f"{begin} {' and '.join(map(network_name, result.networks))}"
    over = over_cards(result)
    is_long = len(f"{text}{over}{why}") > MAX_HEADLINE and why and over
    return f"{text}{why}. They go{over}." if is_long else f"{text}{over}{why}."


def _topology(result: NcclResult) -> str:
    """What connects GPUs and network cards in NCCL's topology; empty if it is not printed."""
    peer, card = result.peer_path, result.card_path
    parts = [f"each other{_way(peer)}"] if peer else []
    parts += [f"a network card{_way(card)}"] if card and card != (ASSUMED_GB_S, "") else []
    return f"GPUs reach {', '.join(parts)}." if parts else ""


def _way(path: tuple[float, str]) -> str:
    speed, kind = path
    if speed == ASSUMED_GB_S:
        return f" ({kind})"
    return f" at {speed:.3g} GB/s ({kind})" if kind else f" of {8 * speed:.3g} Gb/s"


def _plugin(result: NcclResult) -> str:
    """What NCCL's plug-in for libfabric (EFA) says of itself, which does not show what it found."""
    told = [remark.value for remark in result.remarks if remark.name == NcclRemark.PLUGIN]
    has_failed = "Libfabric" in result.missing_networks
    if result.transports or not (told or has_failed):
        return ""
    versions = [text for text in told if text.startswith("aws")]
    more = ", ".join(text for text in told if text not in versions)
    name = " and ".join(versions) or "its plug-in for libfabric"
    return f"NCCL loads {name}{f' ({more})' if more else ''}{', which fails' * has_failed}."


def _share(result: NcclResult, where: str) -> str:
    """For example ``between nodes all connections use NET/IB with GPUDirect RDMA``."""
    ways = [way for way in result.transports if way.where == where and way.num_connections]
    total = sum(way.num_connections for way in ways)
    if not total:
        return ""
    most = max(ways, key=lambda way: way.num_connections)
    slow = next((way for way in ways if way.transport.startswith("SHM")), None)
    first = slow if slow and slow.num_connections >= _MANY * total else most
    share = "all" if len(ways) == 1 else f"{format_ratio(first.num_connections / total)} of the"
    if first is slow:
        rest = "the others" if len(ways) == 2 else format_ratio(most.num_connections / total)
        others = f", {rest} use {transport_name(most)}" if most is not slow else ""
        return f"{where} {share} connections go through CPU memory ({slow.transport}){others}"
    half = has_gdr_at_one_end([way for way in result.transports if way.where == where])
    lack = ", with GPUDirect RDMA at one end only" if half else ", without GPUDirect RDMA"
    note = lack * (where == BETWEEN and most.is_rdma and not most.has_gdr)
    if where == INSIDE and len(ways) == 2:
        note = f", the others {transport_name(next(way for way in ways if way is not most))}"
    return f"{where} {share} connections use {transport_name(most)}{note}"


def _init(result: NcclResult) -> str:
    slowest = max((group.init_ns or 0 for group in result.groups), default=0)
    number = sum(group.num_communicators for group in result.groups)
    if not number:
        return ""
    largest = result.groups[0].num_ranks
    took = f"; the slowest took {format_duration(slowest)} to initialise" if slowest else ""
    return f"{counted(number, 'communicator')}, the largest of {largest:,} ranks{took}."


def _warnings(result: NcclResult) -> str:
    by_kind = grouped((warning.about, warning) for warning in result.warnings)
    problems = by_kind.get("problem") or by_kind.get("kernel")  # its settings, by RCCL
    if not problems:
        return ""
    number = sum(warning.num_lines for warning in problems)
    times = "once" if number == 1 else f"{number:,} times"
    texts = "; ".join(_worded(warning.text) for warning in problems[:_NAMED_WARNINGS])
    return f"NCCL warns {times}: {texts}."


def _worded(text: str) -> str:
    """A warning, in other words if the table has some."""
    rows = ((re.search(row, text), said) for row, said in SAYS["warned"].items())
    return next((said.format(*one.groups()) for one, said in rows if one), text.rstrip(".!"))


# Tables ----------------------------------------------------------------

MAX_ROWS = 12
_MORE = "{} with --all."
_MAX_TEXT = 120
_MAX_UNKNOWN = 5


def transports_table(report: Report, *, show_all: bool) -> TableView | None:
    """Connections between ranks by transport."""
    result = report.nccl
    if not result.num_files:
        return None
    notes = list(result.unavailable)
    if result.num_unknown or result.num_cut:
        notes.append(
            f"Of {result.num_texts:,} NCCL messages, {result.num_unknown:,} are not recognised and "
            f"{result.num_cut:,} are truncated."
        )
    if show_all:
        notes += [
            f"Not recognised: {shorten(text, _MAX_TEXT)}" for text in result.unknown[:_MAX_UNKNOWN]
        ]
    return rows_table(
        "Connections",
        (
            Column("where", "where", left=True),
            Column("transport", transport_name, left=True),
            Column("pairs of ranks", "num_pairs"),
            Column("lines", "num_lines"),
        ),
        result.transports,
        caption="from NCCL's log",
        notes=notes,
        even_empty=True,
    )


def communicators_table(report: Report, *, show_all: bool) -> TableView | None:
    """Communicators by size."""
    return rows_table(
        "Communicators",
        (
            Column("ranks", "num_ranks"),
            Column("number", "num_communicators"),
            Column("nodes", "num_hosts"),
            Column("channels", "num_channels"),
            Column("slowest init", "init_ns"),
            Column("ring leaves a node", _crossings_text, wide_only=True),
            Column("tree depth", "tree_depth", wide_only=True),
        ),
        report.nccl.groups if show_all else report.nccl.groups[:MAX_ROWS],
        caption="identical ones in one row",
    )


def _crossings_text(group: NcclGroup) -> str:
    return "–" if group.crossings is None else f"{group.crossings:.1f} times"


def nccl_hosts_table(report: Report, *, show_all: bool) -> TableView | None:
    """Network cards by host, used and unused."""
    hosts = [host for host in report.nccl.hosts if host.cards]
    shown, more = first_rows(hosts, MAX_ROWS, show_all=show_all, noun="host", note=_MORE)
    return rows_table(
        "Network cards",
        (
            Column("host", "host", left=True),
            Column("ranks", "ranks", left=True),
            Column("kind", lambda host: ", ".join(host.links) or "Socket", left=True),
            # Only those that NCCL found if no connection leaves the host
            Column("used", lambda host: f"{len(host.used_cards) or '–'} of {len(host.cards)}"),
            Column("unused", _unused_cards, left=True, wrap=True),
        ),
        shown,
        caption="cards found by NCCL, and cards used by connections in the log",
        notes=more,
    )


def _unused_cards(host: NcclHost) -> str:
    idle = [card for card in host.cards if card not in host.used_cards]
    return ", ".join(idle) if host.used_cards else "–"


def choices_table(report: Report, *, show_all: bool) -> TableView | None:
    """Algorithms and protocols."""
    choices = report.nccl.choices
    shown, more = first_rows(choices, MAX_ROWS, show_all=show_all, noun="row", note=_MORE)
    return rows_table(
        "Operations",
        (
            Column("operation", "operation", form="name", left=True),
            Column("algorithm", "algorithm", form="name", left=True),
            Column("protocol", "protocol", form="name", left=True),
            Column("sizes", _sizes_text, left=True),
            Column("lines", "num_calls"),
        ),
        shown,
        caption="lines of NCCL's log; a dash if it names no choice",
        notes=more,
    )


def _sizes_text(choice: NcclChoices) -> str:
    if choice.min_bytes is None:
        return "–"
    least, most = format_bytes(choice.min_bytes), format_bytes(choice.max_bytes)
    return least if least == most else f"{least} to {most}"


def nccl_settings_table(report: Report, *, show_all: bool) -> TableView | None:
    """Versions and environment variables."""
    settings = (*report.nccl.versions, *report.nccl.settings)
    shown, more = first_rows(settings, MAX_ROWS, show_all=show_all, noun="setting", note=_MORE)
    return rows_table(
        "NCCL settings",
        (
            Column("name", "name", left=True),
            Column("value", lambda each: shorten(each.value, _MAX_TEXT), left=True, wrap=True),
            Column("processes", lambda each: each.num_processes or None),
            Column("ranks", "ranks", left=True, wide_only=True),
        ),
        shown,
        caption="as NCCL read them",
        notes=more,
    )


def nccl_warnings_table(report: Report, *, show_all: bool) -> TableView | None:
    """Warnings. Those printed at shutdown are harmless and shown only with --all."""
    all_warnings = report.nccl.warnings
    if not all_warnings:
        return None
    kept = [w for w in all_warnings if show_all or w.about != "teardown"]
    hidden = sum(w.num_lines for w in all_warnings) - sum(w.num_lines for w in kept)
    shown, more = first_rows(kept, MAX_ROWS, show_all=show_all, noun="kind", note=_MORE)
    notes = [] if not hidden else [f"{counted(hidden, 'warning')} printed at shutdown: harmless."]
    return rows_table(
        "NCCL warnings",
        (
            Column("warning", "text", left=True, wrap=True),
            Column("kind", "about", left=True),
            Column("lines", "num_lines"),
            Column("ranks", "ranks", left=True, wide_only=True),
        ),
        shown,
        notes=(*notes, *more),
        even_empty=True,
    )
