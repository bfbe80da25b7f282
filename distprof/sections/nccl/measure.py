"""NCCL's logs: connections between ranks inside and between nodes, and NCCL's settings.

Source: the messages of NCCL 2.4 to 2.28 and RCCL. Only the initialisation is timed.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, starmap

from msgspec.structs import replace

from distprof.artefacts.record import grouped, made_from
from distprof.run.logs import NcclCommunicator, NcclEdge, NcclLog
from distprof.run.run import Run
from distprof.sections.nccl import (
    BETWEEN,
    INSIDE,
    NO_LOG,
    SAYS,
    NcclChoices,
    NcclGroup,
    NcclHost,
    NcclResult,
    NcclSetting,
    NcclTransport,
    NcclWarnings,
)
from distprof.units import capitalized

_MAX_CHOICES = 200
_End = tuple[int | None, int | None, int | None, str]
"""Communicator, source, target, and the end that prints a connection."""

_Values = Mapping[str, Sequence[int]]  # Processes by value of a setting
_OF_A_HOST, _MNNVL = ("P2P", "SHM"), "MNNVL"


def analyze_nccl(run: Run) -> NcclResult:
    """Connections and settings of ranks, from logs; empty with a reason if there is no log."""
    log = run.get(NcclLog)
    if log is None:
        return NcclResult(is_missing=_uses_nccl(run), unavailable=(f"{capitalized(NO_LOG)}.",))
    log = _as_it_runs(log)
    places = _Places(log)
    return made_from(
        log,
        NcclResult,
        num_files=len(log.files),
        num_processes=len(log.processes),
        num_hosts=len({process.host for process in log.processes}),
        num_texts=log.num_info + log.num_warn,
        versions=places.settings("version", log.versions),
        networks=tuple(log.networks),
        missing_networks=tuple(log.missing_networks),
        paths=log.links,
        peer_path=log.peer_path,
        card_path=log.card_path,
        tested=log.tested,
        num_test_hosts=len({*log.test_hosts.values()}) or log.num_nodes,
        groups=_groups(log, places),
        transports=_transports(log, places),
        hosts=_hosts(log),
        settings=places.all_settings(log.settings),
        remarks=places.all_settings(log.remarks),
        choices=_choices(log),
        warnings=tuple(
            made_from(
                warning,
                NcclWarnings,
                ranks=places.ranks(warning.processes),
                hosts=places.hosts(warning.processes),
            )
            for warning in log.warnings
        ),
        unavailable=_limits(log),
    )


def _as_it_runs(log: NcclLog) -> NcclLog:
    """The log in which libfabric counts as sockets if it runs over TCP."""
    if not any(re.match(SAYS["slow_provider"], card.name) for card in log.cards):
        return log
    edges = (
        replace(edge, transport=edge.transport.replace("Libfabric", "Libfabric over Socket"))
        for edge in log.edges
    )
    networks = {"Socket": tuple({*chain(*log.networks.values())})} if log.networks else {}
    return replace(log, networks=networks, edges=tuple(edges))


def _uses_nccl(run: Run) -> bool:
    """Whether ranks use NCCL, or an unnamed backend on GPUs."""
    return any(
        "nccl" in rank.backend.lower()
        or (not rank.backend and rank.device.name != "cpu" and len(rank.collectives) > 0)
        for rank in run.ranks
    )


class _Places:
    """Hosts of processes and of communicator members."""

    def __init__(self, log: NcclLog) -> None:
        self._processes = log.processes
        self._tested = log.test_hosts if len(log.communicators) < 2 else {}
        written: dict[tuple[object, ...], set[str]] = defaultdict(set)
        for edge in log.edges:
            # Lines without a direction are those of the sender
            writer = edge.target if edge.direction == "receive" else edge.source
            if writer is not None and edge.process is not None:
                written[edge.communicator, writer].add(log.processes[edge.process].host)
                written[None, writer].add(log.processes[edge.process].host)
        self._is_alone = len(log.communicators) < 2  # and lines without a communicator are its own
        self._of_writer = {key: hosts.pop() for key, hosts in written.items() if len(hosts) == 1}
        self._of_member = [
            {m.rank: log.processes[m.process].host for m in one.members if m.process >= 0}
            if one.is_certain
            else {}
            for one in log.communicators
        ]

    def ranks(self, processes: Iterable[int]) -> tuple[int, ...]:
        """Global ranks, as far as known."""
        known = {self._processes[p].rank for p in processes}
        return tuple(sorted(rank for rank in known if rank is not None))

    def hosts(self, processes: Iterable[int]) -> tuple[str, ...]:
        """Hosts, each once."""
        return tuple(sorted({self._processes[p].host for p in processes}))

    def members(self, communicator: int) -> Mapping[int, str]:
        """Rank to host; empty if members cannot be distinguished."""
        return self._of_member[communicator]

    def settings(self, name: str, values: _Values) -> tuple[NcclSetting, ...]:
        """One row per value of a setting, with the processes and ranks that have it."""
        printing = {process for processes in values.values() for process in processes}
        return tuple(
            NcclSetting(
                name=name,
                value=value,
                num_processes=len(processes),
                ranks=self.ranks(processes),
                hosts=self.hosts(processes),
                num_printing=len(printing),
            )
            for value, processes in values.items()
        )

    def all_settings(self, named: Mapping[str, _Values]) -> tuple[NcclSetting, ...]:
        """The rows of several settings."""
        return tuple(chain.from_iterable(starmap(self.settings, named.items())))

    def _host(self, edge: NcclEdge, rank: int | None) -> str | None:
        """Host of one end of a connection."""
        members = {} if edge.communicator is None else self._of_member[edge.communicator]
        known = None if rank is None else members.get(rank)
        one = None if self._is_alone else edge.communicator
        known = known or self._of_writer.get((one, rank))
        return known or (None if rank is None else self._tested.get(rank))

    def where(self, edge: NcclEdge) -> str:
        """Inside or between nodes, by the hosts of both ends or, if unknown, by the transport.

        Each end prints its own lines. Peer access and shared memory reach no other host, whatever
        the containers on it are called, but for NVLink between nodes (MNNVL).
        """
        if edge.transport.startswith(_OF_A_HOST) and _MNNVL not in edge.transport:
            return INSIDE
        source, target = self._host(edge, edge.source), self._host(edge, edge.target)
        if source is not None and target is not None:
            return INSIDE if source == target else BETWEEN
        return BETWEEN if edge.card is not None else INSIDE


def _transports(log: NcclLog, places: _Places) -> tuple[NcclTransport, ...]:
    ends: dict[tuple[str, str, bool], Counter[_End]] = defaultdict(Counter)
    writers: dict[tuple[str, str, bool], set[int]] = defaultdict(set)
    for edge in log.edges:
        key = (places.where(edge), edge.transport, edge.has_gdr)
        ends[key][edge.communicator, edge.source, edge.target, edge.direction] += edge.num_lines
        writers[key] |= set() if edge.process is None else {edge.process}
    made = []
    for key, own in ends.items():
        # One end may read GPU memory, and the other may not: that one counts
        plain = ends.get((*key[:2], False), Counter()) if key[2] else Counter()
        made.append(
            NcclTransport(
                where=key[0],
                transport=key[1],
                has_gdr=key[2],
                num_lines=own.total(),
                num_connections=(_connected(own + plain) - _connected(plain)).total(),
                num_pairs=len(_connected(own)),
                num_processes=len(writers[key]),
                hosts=places.hosts(writers[key]),
            )
        )
    return tuple(sorted(made, key=lambda w: (w.where, -w.num_lines, w.transport, w.has_gdr)))


def _connected(ends: Counter[_End]) -> Counter[_End]:
    """Channels of each pair, of which both ends may print a line."""
    most: Counter[_End] = Counter()
    for (communicator, source, target, _), number in ends.items():
        pair = communicator, source, target, ""
        most[pair] = max(most[pair], number)
    return most


def _groups(log: NcclLog, places: _Places) -> tuple[NcclGroup, ...]:
    members = ((one, places.members(index)) for index, one in enumerate(log.communicators))
    by_extent = grouped([((one.num_ranks, _num_hosts(one, at)), (one, at)) for one, at in members])
    return tuple(
        _group(size, hosts, by_extent[size, hosts])
        for size, hosts in sorted(by_extent, key=lambda key: (-key[0], key[1] or 0))
    )


def _group(
    size: int,
    hosts: int | None,
    communicators: Sequence[tuple[NcclCommunicator, Mapping[int, str]]],
) -> NcclGroup:
    ones = [one for one, _ in communicators]
    crossings = [n for one, at in communicators for n in _crossings(one, at)]
    return NcclGroup(
        num_ranks=size,
        num_communicators=len(ones),
        num_members=sum(len(one.members) for one in ones),
        num_hosts=hosts,
        num_channels=_most(one.num_channels for one in ones),
        num_nvls_channels=_most(one.num_nvls_channels for one in ones),
        init_ns=_most(one.init_ns for one in ones),
        num_rings=sum(len(one.rings) for one in ones),
        crossings=statistics.fmean(crossings) if crossings else None,
        tree_depth=_most(depth for one in ones for depth in one.tree_depths),
    )


def _num_hosts(one: NcclCommunicator, members: Mapping[int, str]) -> int | None:
    """NCCL's node count, else the number of hosts of all members."""
    if one.num_nodes is not None:
        return one.num_nodes
    return len(set(members.values())) if len(members) == one.num_ranks else None


def _crossings(one: NcclCommunicator, members: Mapping[int, str]) -> list[int]:
    """How often each ring leaves a host."""
    if len(members) != one.num_ranks:
        return []
    return [
        sum(members[a] != members[b] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
        for ring in one.rings
    ]


def _hosts(log: NcclLog) -> tuple[NcclHost, ...]:
    processes = grouped([(process.host, index) for index, process in enumerate(log.processes)])
    used: dict[str, set[int]] = defaultdict(set)
    for edge in log.edges:
        if edge.card is not None and edge.process is not None:
            used[log.processes[edge.process].host].add(edge.card)
    return tuple(_host(log, host, processes[host], used[host]) for host in sorted(processes))


def _host(log: NcclLog, host: str, processes: Sequence[int], used: set[int]) -> NcclHost:
    networks = {card.network for card in log.cards if card.host == host}
    lost = {name for name, who in log.missing_networks.items() if {*who} & {*processes}}
    shown = next((n for n in sorted(networks - lost) if n != "Socket"), "Socket")
    cards = [card for card in log.cards if (card.host, card.network) == (host, shown)]
    ranks = {log.processes[index].rank for index in processes}
    return NcclHost(
        host=host,
        num_processes=len(processes),
        ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        cards=tuple(card.name for card in cards),
        used_cards=tuple(card.name for card in cards if card.index in used),
        links=tuple(sorted({card.link for card in cards if card.link})),
        networks=tuple(
            name for name, chosen in log.networks.items() if not set(chosen).isdisjoint(processes)
        ),
    )


def _choices(log: NcclLog) -> tuple[NcclChoices, ...]:
    same = grouped(((one.operation, one.algorithm, one.protocol), one) for one in log.choices)
    calls = {key: sum(one.num_calls for one in some) for key, some in same.items()}
    order = sorted(calls, key=lambda key: (-calls[key], key))[:_MAX_CHOICES]
    return tuple(
        NcclChoices(
            operation=key[0],
            algorithm=key[1],
            protocol=key[2],
            min_bytes=min(
                (n for one in same[key] if (n := one.num_bytes) is not None), default=None
            ),
            max_bytes=_most(one.num_bytes for one in same[key]),
            num_calls=calls[key],
        )
        for key in order
    )


def _limits(log: NcclLog) -> tuple[str, ...]:
    """Notes on what the logs do not show."""
    limits = list(log.notes)
    if not log.edges:
        limits.append("The log names no connection, so transports are unknown.")
    if any(not one.is_certain for one in log.communicators):
        limits.append(
            "This version of NCCL logs no communicator ids, so members of several communicators of "
            "the same size cannot be distinguished."
        )
    world = log.world_size
    num_ranked = sum(process.rank is not None for process in log.processes)
    if world is not None and len(log.processes) < world:
        limits.append(f"The log covers {len(log.processes)} of {world} ranks.")
    if unknown := len(log.processes) - num_ranked:
        plural = "es" if unknown > 1 else ""
        limits.append(f"The log does not name the rank of {unknown:,} process{plural}.")
    return tuple(limits)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
