"""Build one :class:`~distprof.run.logs.NcclLog` from the messages of all processes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from distprof.bounds import patterns_beside
from distprof.ingest.nccl.communicators import Communicators
from distprof.ingest.nccl.lines import Message, Splitter
from distprof.ingest.nccl.messages import (
    CUT,
    KNOWN,
    UNKNOWN,
    Cards,
    Choice,
    Connection,
    Event,
    Fact,
    Marker,
    Reach,
    parse,
)
from distprof.run.logs import (
    ASSUMED_GB_S,
    NcclCard,
    NcclChoice,
    NcclCommunicator,
    NcclLog,
    NcclProcess,
    NcclWarning,
)
from distprof.terms import NcclRemark

MAX_PROCESSES = 1 << 17
MAX_VALUES = 1 << 12
"""Distinct settings, warnings, choices and networks to keep; further ones are only counted."""

_MAX_CACHED = 1 << 17
_MAX_CACHED_BYTES = 400
_MAX_UNKNOWN = 50
_MAX_HEADS = 1 << 16
_MAX_BAGGED = 1 << 18
_MAX_TEXT = 300
_NAME = re.compile(rb"\w{1,60}")
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")
_SHORTEST_WARNING = 12
"""A shorter text of a warning is one that is cut off."""

_HOW = patterns_beside(__package__, "messages.toml")


class Assembler:
    """Collects the content of messages, in order and in bounded memory."""

    def __init__(self) -> None:
        self._processes: dict[tuple[bytes, int], int] = {}
        self._ranks_of_files: dict[int, int] = {}
        self._cache: dict[bytes, Event] = {}
        self._communicators = Communicators()
        self._heads: dict[bytes, int] = {}
        self._names: list[tuple[bytes, int]] = []
        self._odd = Splitter()
        self._bags: dict[int, defaultdict[bytes, int]] = {}
        self._num_bagged = 0
        self._facts: dict[str, dict[str, dict[str, set[int]]]] = defaultdict(dict)
        self._cards: dict[tuple[int, str], dict[tuple[int, str, str], None]] = {}
        self._missing: dict[str, set[int]] = {}
        self._of_cards: dict[str, set[int]] = {}  # NCCL lists the cards of the one that it uses
        self._links: Counter[str] = Counter()
        self._peer_path: tuple[float, str] | None = None
        self._card_path: tuple[float, str] | None = None
        self._choices: Counter[tuple[str, int | None, str, str]] = Counter()
        self._warnings: dict[str, tuple[str, Counter[int]]] = {}
        self._counts: Counter[str] = Counter()
        self._unknown: dict[str, None] = {}

    @property
    def num_processes(self) -> int:
        """Processes that wrote so far."""
        return len(self._processes)

    def take_lines(self, lines: list[bytes], splitter: Splitter, rank: int | None) -> None:
        """Read lines in order; clean lines of channels and calls are counted and parsed later."""
        heads, bags = self._heads, self._bags
        calls: dict[bytes, int] = {}
        number = 0
        for line in lines:
            parts = line.split(b" NCCL INFO ")
            if len(parts) != 2:
                if b"CCL " in line:
                    self._take_line(line, splitter, rank)
                continue
            head, text = parts
            process = heads.get(head)
            if process is None:
                process = heads.get(head[head.rfind(b" ", 0, head.rfind(b" ")) + 1 :])
            if process is None:
                self._take_line(line, splitter, rank)
                continue
            if text[:8] == b"Channel ":
                at = text.find(b" : ")
                if at >= 0 and b" -> " in text:  # else a ring, or cut off
                    bags[process][text[at:]] += 1
                    number += 1
                    continue
            elif b": opCount " in text and b"NCCL " not in text:
                name = text[: text.find(b":")]
                calls[name] = calls.get(name, 0) + 1
                continue
            if b"CCL " in text or b"\x1b" in line:
                self._take_line(line, splitter, rank)
            else:  # a single message of a known process
                self.take((self._names[process], b"INFO", text.strip()), rank)
        for name, number in calls.items():
            self._counts["info"] += number
            if _NAME.fullmatch(name):
                self._choose((_text(name), None, "", ""), number)
            else:
                self._counts["cut"] += number
        self._num_bagged += number
        if self._num_bagged > _MAX_BAGGED:
            self._empty_all()

    def _take_line(self, line: bytes, splitter: Splitter, rank: int | None) -> None:
        """Read a line in full, and remember the beginning of clean lines of its process."""
        messages = list(splitter.split(line))
        for message in messages:
            self.take(message, rank)
        if len(messages) != 1 or messages[0][0] is None or b"\x1b" in line:
            return
        head, mark, _ = line.partition(b" NCCL INFO ")
        process = self._processes.get(messages[0][0])
        if mark and process is not None and len(head) < _MAX_CACHED_BYTES:
            if len(self._heads) > _MAX_HEADS:
                self._heads.clear()
            self._heads[head[head.rfind(b" ", 0, head.rfind(b" ")) + 1 :]] = process
            self._bags.setdefault(process, defaultdict(int))

    def _empty_all(self) -> None:
        for process in self._bags:
            self._empty(process)
        self._num_bagged = 0

    def _empty(self, process: int) -> None:
        """Parse the channel messages of a process that were only counted."""
        bag, self._bags[process] = self._bags[process], defaultdict(int)
        for what, number in bag.items():
            text = b"Channel 0/0" + what
            if b"NCCL " in text or b"\x1b" in text:
                host, pid = self._names[process]
                line = b"%s:%d:0 [0] NCCL INFO %s" % (host, pid, text)
                for message in list(self._odd.split(line)):
                    for _ in range(number):
                        self.take(message, None)
                continue
            event = self._cache.get(text) or self._parse(text)
            self._counts["info"] += number
            if type(event) is Connection:
                self._communicators.connect(process, event, number)
            elif event is not KNOWN:
                self._count_unknown(event, text, number)

    def take(self, message: Message, rank: int | None) -> None:
        """Read one message of a file that the rank wrote."""
        who, level, text = message
        process = self._process(who, rank) if who else -1
        if self._bags.get(process):
            self._empty(process)
        if level == b"WARN":
            self._counts["warn"] += 1
            self._warn(process, text)
            if isinstance(said := self._cache.get(text) or self._parse(text), Fact | Cards):
                self._keep(process, said)
            return
        if level == b"INFO":
            self._counts["info"] += 1
        elif level != b"" and level != b"version":
            return
        event = self._cache.get(text) or self._parse(text)
        if type(event) is Connection:
            self._communicators.connect(process, event)
        elif not isinstance(event, Marker):
            self._keep(process, event)
        elif event is UNKNOWN or event is CUT:
            self._count_unknown(event, text, int(level == b"INFO"))

    def result(
        self, files: Mapping[str, range], counts: Mapping[str, int], notes: list[str]
    ) -> NcclLog:
        """The log of files, each with the processes that it names first, after the last message."""
        self._empty_all()
        facts = self._facts
        communicators, edges = self._communicators.result()
        ranks = {**self._communicators.world_ranks(communicators), **self._ranks_of_files}
        if left := self._counts["left"] + self._communicators.num_left:
            notes = [*notes, f"{left:,} messages exceed the memory limit and were skipped."]
        return NcclLog(
            files=tuple(files),
            num_jobs=count_jobs(tuple(files.values()), communicators),
            processes=tuple(
                NcclProcess(host=_text(host), pid=pid, rank=ranks.get(index))
                for (host, pid), index in self._processes.items()
            ),
            versions=_sorted(facts["versions"].get("", {})),
            settings={name: _sorted(of) for name, of in sorted(facts["settings"].items())},
            communicators=communicators,
            edges=edges,
            cards=self._all_cards(),
            missing_networks=_sorted(self._missing),
            networks=_sorted(facts["networks"].get("") or self._listed()),
            remarks={name: _sorted(of) for name, of in sorted(facts["remarks"].items())},
            links=tuple(sorted(self._links)),
            peer_path=self._peer_path,
            card_path=self._card_path,
            num_nodes=self._communicators.num_nodes,
            choices=tuple(
                NcclChoice(
                    operation=name, num_bytes=size, algorithm=how, protocol=protocol, num_calls=n
                )
                for (name, size, how, protocol), n in self._choices.items()
            ),
            warnings=tuple(self._all_warnings()),
            num_lines=counts["lines"],
            num_bytes=counts["bytes"],
            num_info=self._counts["info"],
            num_warn=self._counts["warn"],
            num_unknown=self._counts["unknown"],
            num_cut=self._counts["cut"],
            unknown=tuple(self._unknown),
            notes=tuple(notes),
        )

    def _listed(self) -> dict[str, set[int]]:
        """Networks by the cards that are listed; NCCL 2.4 lists sockets next to InfiniBand."""
        missing = self._missing
        listed = {name: who - missing.get(name, set()) for name, who in self._of_cards.items()}
        if any(who for name, who in listed.items() if name != "Socket"):
            listed["Socket"] = listed.get("Socket", set()) & missing.get("IB", set())
        if not any(listed.values()) and {"IB", "Libfabric"} <= missing.keys():  # what is left
            listed["Socket"] = missing["IB"]
        num = sum(-1 in who for who in self._of_cards.values())  # of several, some are expected
        return {name: who for name, who in listed.items() if who - {-1} or (who and num < 2)}

    def _process(self, who: tuple[bytes, int], rank: int | None) -> int:
        index = self._processes.get(who)
        if index is None:
            if len(self._processes) >= MAX_PROCESSES:
                self._counts["left"] += 1
                return -1
            index = self._processes[who] = len(self._processes)
            self._names.append(who)
            self._odd.know(*who)
        if rank is not None:
            self._ranks_of_files[index] = rank
        return index

    def _parse(self, text: bytes) -> Event:
        event = parse(text.decode("utf-8", "replace"))
        if len(text) <= _MAX_CACHED_BYTES:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[text] = event
        return event

    def _keep(self, process: int, event: Event) -> None:
        match event:
            case Choice():
                self._choose((event.operation, event.num_bytes, event.algorithm, event.protocol))
            case Fact(name=name, value=value, network=network):
                named = self._facts[event.of]
                if name in named or len(named) < MAX_VALUES:
                    self._note(named.setdefault(name, {}), value, process)
                if network:
                    self._note(self._of_cards, network, process)
            case Cards(network=network, cards=()):
                self._note(self._missing, network, process)
            case Cards(network=network, cards=cards):
                known = self._cards.setdefault((process, network), {})
                if len(known) < MAX_VALUES:
                    known.update(dict.fromkeys(cards))
                self._note(self._of_cards, network, process)
            case Reach(peer=peer, card=card, inside=inside, rings=rings):
                if rings:
                    self._keep(process, Fact("remarks", NcclRemark.RINGS, rings))
                self._peer_path = min(filter(None, (self._peer_path, peer)), default=None)
                self._card_path = min(
                    filter(None, (self._card_path, card)),
                    key=lambda path: (not path[1], path[0] == ASSUMED_GB_S, path[0]),
                    default=None,
                )
                if len(self._links) < MAX_VALUES:
                    self._links.update({inside, peer[1] if peer else ""} - {""})
            case _:
                self._communicators.keep(process, event)

    def _note(self, values: dict[str, set[int]], value: str, process: int) -> None:
        if value not in values and len(values) >= MAX_VALUES:
            self._counts["left"] += 1
            return
        values.setdefault(value, set()).add(process)

    def _choose(self, key: tuple[str, int | None, str, str], number: int = 1) -> None:
        if key in self._choices or len(self._choices) < MAX_VALUES:
            self._choices[key] += number
        else:
            self._counts["left"] += number

    def _warn(self, process: int, raw: bytes) -> None:
        text = _text(raw)
        key = _DIGITS.sub("0", text)
        if key not in self._warnings:
            if len(self._warnings) >= MAX_VALUES:
                self._counts["left"] += 1
                return
            self._warnings[key] = (text, Counter())
        self._warnings[key][1][process] += 1

    def _count_unknown(self, event: Event, text: bytes, number: int) -> None:
        if not number:  # text of another program that looks like a version of NCCL
            return
        self._counts["cut" if event is CUT else "unknown"] += number
        if event is not CUT and len(self._unknown) < _MAX_UNKNOWN:
            self._unknown[_text(text)] = None

    def _all_cards(self) -> tuple[NcclCard, ...]:
        """Cards, each once per host."""
        hosts = [_text(host) for host, _ in self._processes]
        found = {
            (hosts[process] if process >= 0 else "", network, *card): None
            for (process, network), cards in self._cards.items()
            for card in cards
        }
        return tuple(
            NcclCard(host=host, network=network, index=index, name=name, link=link)
            for host, network, index, name, link in sorted(found)
        )

    def _all_warnings(self) -> list[NcclWarning]:
        return [
            NcclWarning(
                text=text,
                about=_about(text),
                num_lines=sum(who.values()),
                processes=tuple(sorted(p for p in who if p >= 0)),
            )
            for text, who in sorted(
                self._warnings.values(), key=lambda kept: (-sum(kept[1].values()), kept[0])
            )
        ]


def _about(text: str) -> str:
    if _HOW["harmless"].search(text):
        return "teardown" if "MSCCL" not in text else "fallback"
    if "Could not find a path" in text:
        return "problem"
    if len(text) < _SHORTEST_WARNING:
        return "cut"
    kinds = (kind for kind in ("fallback", "kernel") if _HOW[kind].search(text))
    return next(kinds, "problem")


def _sorted(values: Mapping[str, set[int]]) -> dict[str, tuple[int, ...]]:
    return {value: tuple(sorted(p for p in who if p >= 0)) for value, who in sorted(values.items())}


def _text(raw: bytes) -> str:
    return raw[:_MAX_TEXT].decode("utf-8", "replace")


def count_jobs(files: Sequence[range], communicators: Sequence[NcclCommunicator]) -> int:
    """Number of sets of processes that share a file or a communicator; a job may have several."""
    sets = _Sets()
    for file in files:
        sets.join(file)
    for communicator in communicators:
        sets.join([member.process for member in communicator.members])
    return len({sets.root(c.members[0].process) for c in communicators if c.members})


class _Sets:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def root(self, item: int) -> int:
        """The representative of the set of ``item``."""
        while self._parent.setdefault(item, item) != item:
            self._parent[item] = item = self._parent[self._parent[item]]
        return item

    def join(self, items: Sequence[int]) -> None:
        """Merge the sets of all items."""
        for item in items:
            self._parent[self.root(item)] = self.root(items[0])
