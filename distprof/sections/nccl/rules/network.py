"""Rules about the network that NCCL uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, advice, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.nccl import (
    BETWEEN,
    SAYS,
    NcclHost,
    NcclResult,
    different_networks,
    has_gdr_at_one_end,
    is_of_one_host,
    over_cards,
    why_not_fast,
)
from distprof.sections.nccl.rules import (
    connections,
    exposed_between_nodes,
    has_log,
    only_on,
    said,
    setting_of,
)
from distprof.sections.shares import StepTimes
from distprof.sections.table import counted
from distprof.terms import Confidence, NcclRemark, Severity
from distprof.units import capitalized, few_names, verb

_MOST_CARDS = 4
_GPUS_OF_A_HOST = 8


@rule(
    "NET101",
    Severity.WARNING,
    socket_ratio=Limit(0.01, "smallest share of connections between nodes over sockets"),
)
def nccl_over_sockets(
    nccl: NcclResult, collectives: CollectivesResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Connections between nodes use TCP sockets, according to NCCL's log."""
    if has_log(nccl) and not nccl.transports and nccl.networks:
        yield from _by_choice(nccl)
        return
    sockets, total = connections(nccl, BETWEEN, lambda way: way.transport.endswith("Socket"))
    if not sockets or sockets < limits["socket_ratio"] * total:
        return
    names = sorted({way.transport for way in nccl.transports if way.transport.endswith("Socket")})
    yield Draft(
        headline=f"{sockets:,} of {total:,} connections between nodes use TCP sockets",
        message=f"NCCL chose {', '.join(names)}{_why(nccl)}.{_idle(nccl)}",
        fix=_access(nccl),
        cost_ns_per_step=exposed_between_nodes(collectives, times),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports", "nccl.networks"),
    )


def _idle(nccl: NcclResult) -> str:
    """Interfaces that no connection uses on any host."""
    used = {card for host in nccl.hosts for card in host.used_cards}
    idle = {card for host in nccl.hosts if host.used_cards for card in host.cards} - used
    if not idle:
        return ""
    names = (", ".join(sorted(some)[:_MOST_CARDS]) for some in (used, idle))
    what = "which no other host reaches: set NCCL_SOCKET_IFNAME={}"
    what = what if all(map(is_of_one_host, used)) else "and none of those shown uses {}"
    return f" They use {{}}, {what}.".format(*names)


def _by_choice(nccl: NcclResult) -> Iterator[Draft]:
    """The finding from the network that NCCL chose, if the log names no connection.

    Inside a node, ranks do without the network, so a log of one host is information.
    """
    if differ := different_networks(nccl):
        yield Draft(
            headline=f"Hosts chose {len(nccl.networks)} networks, and NCCL cannot connect them",
            message=f"{capitalized(differ)}.",
            fix=advice("nccl-over-sockets", "different"),
            confidence=Confidence.MEASURED,
            evidence=("nccl.hosts",),
        )
        return
    # A few ranks of which one host is seen are most probably all on it
    group = next(iter(nccl.groups), None)
    is_due = group.num_ranks > _GPUS_OF_A_HOST if group else bool(_why(nccl))
    is_inside = nccl.is_on_one_host or not (is_due or nccl.has_several_hosts)
    if set(nccl.networks) != {"Socket"} or is_inside or over_cards(nccl) == " over lo":
        return
    by = f", according to {counted(nccl.num_processes, 'process')}" * bool(nccl.num_processes)
    several = nccl.has_several_hosts
    seen = "" if several else ", if there are any: the text shows one"
    what = "uses TCP sockets between nodes" if several else "has only TCP sockets"
    yield Draft(
        headline=f"NCCL {what}{by}",
        message=(
            f"NCCL uses sockets{over_cards(nccl)} for everything between nodes{seen}{_why(nccl)}."
        ),
        fix=_ON_ONE_HOST * (not several) + _access(nccl),
        confidence=Confidence.INFERRED,
        severity=None if several else Severity.INFO,
        evidence=("nccl.networks", "nccl.hosts"),
    )


_ON_ONE_HOST = "With all ranks on one host, this costs nothing. "


def _access(nccl: NcclResult) -> str:
    """What to do so that NCCL uses another network, by the log's reason why it does not."""
    why = why_not_fast(nccl)
    kinds = {" fits ": "misnamed", " is set": "disabled", "libfabric": "plugin"}
    fitting = (kind for sign, kind in kinds.items() if sign in why)
    return advice("nccl-over-sockets", next(fitting, "unavailable"))


def _why(nccl: NcclResult) -> str:
    """What the log says about the fast network."""
    if why := why_not_fast(nccl):
        no_verbs = ", so InfiniBand and RoCE are out of reach" if "libibverbs" in why else ""
        return f"; {why}{no_verbs}"
    if any(host.links for host in nccl.hosts):
        return ", although NCCL found RDMA cards"
    if nccl.missing_networks:
        return f"; NCCL found no device for {', '.join(nccl.missing_networks)}"
    return "; the log does not show whether the machines have a faster network"


@rule(
    "NET102",
    Severity.WARNING,
    plain_ratio=Limit(0.05, "smallest share of RDMA connections without GPUDirect"),
)
def no_gpudirect(
    nccl: NcclResult, collectives: CollectivesResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Connections between nodes use RDMA cards without GPUDirect RDMA, according to NCCL's log."""
    off = said(nccl, NcclRemark.GDR_OFF)
    remarks = [remark for remark in off if remark.value not in nccl.missing_networks]
    if has_log(nccl) and not nccl.transports and remarks and not said(nccl, NcclRemark.GDR_ON):
        # From what NCCL says of its cards, where the log names no connection
        cards = sorted({remark.value for remark in remarks})
        what = "libfabric" if cards == ["Libfabric"] else counted(len(cards), "network card")
        most = max(remark.num_processes for remark in remarks)
        where = f" on {most:,} of {nccl.num_processes:,} processes" * (nccl.num_processes > 1)
        yield Draft(
            headline=f"GPUDirect RDMA is disabled for {what}",
            message=(
                f"NCCL says so{where} for {few_names(cards, _MOST_CARDS)}, and enables it "
                "for none: every byte between nodes goes through CPU memory."
            ),
            fix=_fix(nccl),
            confidence=Confidence.INFERRED,
            evidence=("nccl.remarks",),
        )
        return
    plain, _ = connections(nccl, BETWEEN, lambda way: way.is_rdma and not way.has_gdr)
    total, _ = connections(nccl, BETWEEN, lambda way: way.is_rdma)
    if not plain or plain < limits["plain_ratio"] * total:
        return
    rdma = [way for way in nccl.transports if way.where == BETWEEN and way.is_rdma]
    ways = {way.transport for way in rdma if not way.has_gdr}
    where = only_on(nccl, BETWEEN, lambda way: not way.has_gdr)
    level = setting_of(nccl, "NCCL_NET_GDR_LEVEL")
    because = f"; NCCL_NET_GDR_LEVEL is set to {level}" if level else ""
    half = not where and has_gdr_at_one_end(rdma)
    lack = "have GPUDirect RDMA at one end only" if half else "lack GPUDirect RDMA"
    fix = advice("no-gpudirect", "far") if total > plain and not where else _fix(nccl)
    yield Draft(
        headline=f"{plain:,} of {total:,} connections between nodes {lack}",
        message=(
            f"They use {', '.join(sorted(ways))}{f' and lack it only{where}' if where else ''}, "
            f"and every byte goes through CPU memory{' at the other end' * half}{because}."
        ),
        fix=advice("no-gpudirect", "half") if half else fix,
        cost_ns_per_step=exposed_between_nodes(collectives, times),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports",),
    )


def _fix(nccl: NcclResult) -> str:
    """The fix for this vendor's GPUs and cards; nvidia-peermem works only with NVIDIA's."""
    off = (remark.value for remark in said(nccl, NcclRemark.GDR_OFF))
    networks = (*nccl.networks, *(way.transport for way in nccl.transports), *off)
    cards = (card for host in nccl.hosts for card in host.cards)
    names = " ".join((*networks, *cards, *(v.value for v in nccl.versions), *nccl.paths)).lower()
    fitting = (maker for maker, its in SAYS["makers"].items() if re.search(its, names))
    return advice("no-gpudirect", next(fitting, "nvidia"))


_MOST_NAMED = 6


@rule(
    "NET104",
    Severity.WARNING,
    costs_time=False,
    used_ratio=Limit(
        0.99, "smallest acceptable share of used cards among those that could each serve a GPU"
    ),
)
def unused_network_cards(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:
    """NCCL uses only some of a node's network cards, although GPUs share the cards that it uses; or
    a setting leaves it a single RDMA card for four GPUs or more.
    """
    if not has_log(nccl):
        return
    yield from _fewer_cards(nccl)
    alone = [host for host in nccl.hosts if len(host.cards) == 1 and host.links]
    alone = [host for host in alone if host.num_processes >= _MANY_GPUS]  # between them
    allowed = setting_of(nccl, "NCCL_IB_HCA")
    if alone and allowed:
        most = max(alone, key=lambda host: (host.num_processes, host.host))
        yield Draft(
            headline=f"NCCL_IB_HCA leaves NCCL one network card for {most.num_processes:,} GPUs",
            message=(
                f"It is set to {allowed}: only {most.cards[0]} is left on {len(alone):,} of "
                f"{len(nccl.hosts):,} hosts."
            ),
            fix="Unset NCCL_IB_HCA, or name all cards that are meant for training.",
            confidence=Confidence.INFERRED,
            ranks=tuple(sorted(rank for host in alone for rank in host.ranks)),
            evidence=("nccl.hosts", "nccl.settings"),
        )
        return
    found = [host for host in nccl.hosts if _is_short(host, limits["used_ratio"])]
    if not found:
        return
    worst = min(found, key=lambda host: (len(host.used_cards) / len(host.cards), host.host))
    idle = [card for card in worst.cards if card not in worst.used_cards]
    yield Draft(
        headline=f"NCCL uses {len(worst.used_cards)} of {len(worst.cards)} network cards of a host",
        message=(
            f"It has too few for its GPUs on {len(found)} of {len(nccl.hosts)} hosts, for example "
            f"for {worst.num_processes} GPUs on {worst.host}, where "
            f"{few_names(idle, _MOST_NAMED)} {'is' if len(idle) == 1 else 'are'} unused."
        ),
        fix=advice("unused-network-cards", "unused"),
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in found for rank in host.ranks)),
        evidence=("nccl.hosts",),
    )


def _fewer_cards(nccl: NcclResult) -> Iterator[Draft]:
    """Hosts that lack RDMA cards which others of the job have."""
    hosts = {host.host: {*host.cards} for host in nccl.hosts if host.links and host.num_processes}
    whole = max(hosts.values(), key=len, default=set())
    short = {name: sorted(whole - cards) for name, cards in hosts.items() if cards < whole}
    if not short or nccl.num_jobs > 1 or 2 * len(short) > len(hosts):
        return
    host, lost = min(short.items())
    fewer = counted(len(hosts[host]), "network card")
    also = f"; {len(short) - 1:,} more hosts lack cards, too" if len(short) > 1 else ""
    yield Draft(
        headline=f"NCCL finds {fewer} on {host}, {len(whole)} elsewhere",
        message=f"{few_names(lost, _MOST_NAMED)} {verb(lost, 'are')} missing there{also}.",
        fix=advice("unused-network-cards", "missing"),
        confidence=Confidence.MEASURED,
        evidence=("nccl.hosts",),
    )


_MANY_GPUS = 4


def _is_short(host: NcclHost, min_ratio: float) -> bool:
    """Whether GPUs share cards while others are idle; of interfaces, NCCL uses what it is told."""
    useful = min(len(host.cards), host.num_processes)
    return 0 < len(host.used_cards) < min_ratio * useful and "Socket" not in host.networks


@rule("NET112", Severity.WARNING, costs_time=False)
def sharp_unavailable(nccl: NcclResult) -> Iterator[Draft]:
    """NCCL was told to reduce in the switches (SHARP, CollNet), tried to, and failed."""
    if not has_log(nccl):
        return
    failed = [warning for warning in nccl.warnings if re.search(SAYS["no_sharp"], warning.text)]
    if not failed:
        return
    most = max(failed, key=lambda warning: warning.num_lines)
    times = "once" if most.num_lines == 1 else f"{most.num_lines:,} times"
    yield Draft(
        headline=f"NCCL could not use SHARP, in-network reduction: it warned {times}",
        message=f"It reduces on the GPUs instead: {most.text.rstrip('.')}.",
        fix=advice("sharp-unavailable"),
        ranks=most.ranks,
        evidence=("nccl.warnings",),
    )
