"""Read the output of ``ncclras`` for a running job, as text or JSON.

A snapshot lists communicators, unresponsive ranks, errors, and the number of operations that each
rank has launched. If a file has several snapshots, the last one counts. The one before shows
whether the job made progress in between.

Source: NVIDIA/nccl, ``src/ras/client_support.cc`` (``rasClientRunComms``, ``rasDumpCommsToJSON``);
NCCL user guide, "RAS". Text since NCCL 2.24, JSON since 2.28.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.bounds import num_parts, patterns_beside, table_beside
from distprof.run.evidence import RasGroup, RasLaunches, RasRank, RasStatus, RasTrouble

MAX_PARTS = 5_000_000
MAX_TROUBLES = 20_000
_MAX_NAME = 100
_IN_PROGRESS = 7
_JSON_SIGNS = ('"nccl_version"', '"communicators_count"')
_TEXT_SIGN = "Job summary\n==========="
_PATTERNS = patterns_beside(__package__, "ras.toml")
_RESULTS: dict[str, str] = table_beside(__package__, "ras.toml")["results"]


def is_ras(start: str) -> bool:
    """Whether the beginning of a file is output of ncclras."""
    text = start.replace("\r\n", "\n")
    if text.lstrip()[:1] == "{":
        return all(sign in text[:2_000] for sign in _JSON_SIGNS)
    is_whole = _TEXT_SIGN in text and "Communicators..." in text
    return is_whole or _PATTERNS["part"].search(text) is not None


def parse_ras(text: str) -> RasStatus | None:
    """The last snapshot of a file; None without any. DecodeError or ValueError if it is damaged."""
    if text.lstrip()[:1] == "{":
        snapshots = [_of_json(one) for one in _objects(text)]
    else:
        lines = text.replace("\r\n", "\n").split("\n")
        snapshots = [_Text(part).result() for part in _split(lines)]
    if not snapshots:
        return None
    last = replace(snapshots[-1], num_snapshots=len(snapshots))
    if len(snapshots) < 2:
        return last
    before = {(one.communicator, one.operation): one for one in snapshots[-2].launches}
    after = {(one.communicator, one.operation): one for one in last.launches}
    return replace(last, stands=bool(after) and before == after)


# Text ---------------------------------------------------------------------------------------------

_HEADINGS = ("DEAD", "INCOMPLETE", "TIMEOUT")


def _split(lines: Sequence[str]) -> Iterator[list[str]]:
    """Lines of each snapshot, which begins a few lines before its ``Job summary``, if copied."""
    starts = [i for i, line in enumerate(lines) if line.strip() == "Job summary"] or [0]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield [*lines[max(start - 4, 0) : start], *lines[start:end]]


class _Text:
    """Reader of the lines of one snapshot."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.status = RasStatus()
        self.groups: list[RasGroup] = []
        self.troubles: list[RasTrouble] = []
        self.launches: dict[tuple[str, str], dict[int, RasLaunches]] = {}
        self._kind = ""
        self._communicator = ""
        self._size: int | None = None
        self._operation = ""
        self._count: int | None = None
        self._why = ""
        for line in lines:
            self._take(line[:4_000])

    def _take(self, line: str) -> None:
        version, group = _PATTERNS["version"].match(line), _PATTERNS["group"].fullmatch(line)
        about = _PATTERNS["about"].match(line.strip())
        line = f" {line.strip()}"  # parts are copied with other margins
        if version is not None:
            self.status = replace(self.status, version=version[1])
        elif about is not None:
            number, self._communicator, self._kind = int(about[1]), f"0x{about[2]}", about[3]
            self._size = self.groups[number].size if number < len(self.groups) else None
            self._operation, self._count, self._why = "", None, ""
        elif line.strip() in _HEADINGS:
            self._kind, self._communicator, self._size = line.strip(), "", None
        elif group is not None:
            errors = () if group["errors"] == "OK" else tuple(group["errors"].split(","))
            fields = {**group.groupdict(), "errors": errors}
            self.groups.append(msgspec.convert(fields, RasGroup, strict=False))
        elif self._kind == "TIMEOUT" and (counted := _PATTERNS["counted"].match(line)) is not None:
            self.status = replace(self.status, num_timeouts=int(counted[1]))
            self._kind = ""
        elif self._kind or self._operation or _PATTERNS["different"].match(line):
            self._detail(line)
        elif (totals := _PATTERNS["totals"].fullmatch(line)) is not None:
            numbers = {name: int(number) for name, number in totals.groupdict().items()}
            self.status = replace(self.status, **numbers)

    def result(self) -> RasStatus:
        """The snapshot."""
        launches = (one for each in self.launches.values() for one in each.values())
        return replace(
            self.status,
            groups=tuple(self.groups),
            troubles=tuple(self.troubles),
            launches=tuple(launches),
        )

    def _detail(self, line: str) -> None:
        """Read a line below a heading."""
        process = _PATTERNS["process"].match(line)
        if process is not None:
            pid, host, gpus = process.groups()
            kind = "dead" if self._kind == "DEAD" else "unresponsive"
            gpu = int(gpus.split(",")[0])
            self._add(kind, RasRank(rank=None, host=host, pid=int(pid), gpu=gpu))
            return
        names = ("different", "launched", "none_launched", "reported", "status")
        different, launched, none, reported, status = (_PATTERNS[n].match(line) for n in names)
        if different is not None:
            self._operation, self._count, self._why = different[1], None, ""
        elif launched is not None or none is not None:
            self._count = int(launched[2]) if launched is not None else 0
            number = int((launched or none)[1])  # type: ignore[index]
            self._launch(self._count, num_ranks=number)
        elif reported is not None or status is not None:
            self._why = (reported or status)[2]  # type: ignore[index]
        elif (rank := _PATTERNS["rank"].match(line)) is not None:
            self._rank(rank)
        elif (missing := _PATTERNS["missing"].match(line)) is not None:
            numbers = [int(number) for number in re.findall(r"\d+", missing[1])]
            is_known = [one.rank.rank for one in self.troubles] == [None] == [None] * len(numbers)
            known = self.troubles.pop() if is_known else None  # the only process without an answer
            for number in numbers:
                at = known.rank if known else RasRank(rank=None)
                self._add(known.kind if known else "unresponsive", replace(at, rank=number))

    def _rank(self, found: re.Match[str]) -> None:
        known = {name: found[name] for name in ("host", "pid", "gpu") if found[name] is not None}
        rank = msgspec.convert({"rank": found[1], **known}, RasRank, strict=False)
        if self._operation:
            alone = found["count"] is not None or found["none"] is not None
            count = int(found["count"] or 0) if alone else self._count
            if count is not None:
                self._launch(count, ranks=(rank,), num_ranks=1 if alone else 0)
        elif self._kind == "INCOMPLETE":
            self._add("unresponsive", rank)
        elif self._kind == "ERROR":
            self._add("error", rank, (found["error"] or self._why).strip())
        elif self._kind == "MISMATCH":
            self._add("status", rank, found["status"] or self._why)

    def _launch(self, count: int, *, num_ranks: int = 0, ranks: tuple[RasRank, ...] = ()) -> None:
        each = self.launches.setdefault((self._communicator, self._operation), {})
        known = each.get(count) or RasLaunches(
            communicator=self._communicator,
            size=self._size,
            operation=self._operation,
            launched=count,
        )
        each[count] = replace(
            known, num_ranks=known.num_ranks + num_ranks, ranks=(*known.ranks, *ranks)
        )

    def _add(self, kind: str, rank: RasRank, text: str = "") -> None:
        if len(self.troubles) < MAX_TROUBLES:
            self.troubles.append(
                RasTrouble(
                    kind=kind,
                    communicator=self._communicator,
                    size=self._size,
                    rank=rank,
                    text=text[:_MAX_NAME],
                )
            )


# JSON ---------------------------------------------------------------------------------------------


_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Status(msgspec.Struct):
    init_state: _Whole = 0
    async_error: _Whole = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: _Whole
    host: str = ""
    pid: _Whole = -1
    cuda_dev: _Whole = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, _Whole] = {}


class _Communicator(msgspec.Struct):
    hash: str
    size: _Whole
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Ras(msgspec.Struct):
    timeouts_count: _Whole = 0


class _Snapshot(msgspec.Struct):
    nccl_version: str = ""
    timestamp: str = ""
    communicators: list[_Communicator] = []
    ras: _Ras = msgspec.field(default_factory=_Ras)


def _objects(text: str) -> Iterator[_Snapshot]:
    """Snapshots of a file with one or several JSON objects."""
    if num_parts(text.encode("utf-8", "replace")) > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS:,} values")
    decoder = msgspec.json.Decoder(_Snapshot)
    for part in re.split(r"(?<=\n\})\s*(?=\{)", text.strip()):
        yield decoder.decode(part)


def _of_json(snapshot: _Snapshot) -> RasStatus:
    everyone = {(rank.host, rank.pid) for one in snapshot.communicators for rank in one.ranks}
    groups = Counter(_shape(one) for one in snapshot.communicators)
    troubles = [trouble for one in snapshot.communicators for trouble in _troubles(one)]
    return RasStatus(
        version=snapshot.nccl_version[:_MAX_NAME],
        time=snapshot.timestamp[:_MAX_NAME],
        num_nodes=len({host for host, _ in everyone}) or None,
        num_processes=len(everyone) or None,
        num_timeouts=max(snapshot.ras.timeouts_count, 0),
        groups=tuple(
            RasGroup(
                num_communicators=count, num_nodes=nodes, size=size, status=status, errors=errors
            )
            for (size, nodes, status, errors), count in sorted(groups.items(), reverse=True)
        ),
        troubles=tuple(troubles[:MAX_TROUBLES]),
        launches=tuple(one for each in snapshot.communicators for one in _launches(each)),
    )


def _state(rank: _Rank) -> str:
    if rank.status.abort_flag:
        return "ABORT"
    if rank.status.finalize_called or rank.status.destroy_flag:
        return "FINALIZE"
    return "RUNNING" if rank.status.init_state == 0 else "INIT"


def _named(rank: _Rank) -> RasRank:
    return RasRank(
        rank=rank.rank if rank.rank >= 0 else None,
        host=rank.host[:_MAX_NAME],
        pid=rank.pid if rank.pid >= 0 else None,
        gpu=rank.cuda_dev if rank.cuda_dev >= 0 else None,
    )


def _shape(one: _Communicator) -> tuple[int, int, str, tuple[str, ...]]:
    """Size, nodes, status and errors, as in the table of the text output."""
    states = Counter(map(_state, one.ranks)).most_common(1)
    away = any(rank.status.unresponsive for rank in one.missing_ranks)
    names = {"dead": "INCOMPLETE", "unresponsive": "INCOMPLETE", "error": "ERROR"}
    errors = {names.get(trouble.kind, "MISMATCH") for trouble in _troubles(one)}
    errors |= {"MISMATCH"} if _launches(one) else set()
    errors |= {"INCOMPLETE"} if away else set()
    nodes = len({rank.host for rank in (*one.ranks, *one.missing_ranks)})
    return one.size, nodes, states[0][0] if states else "NOCOMM", tuple(sorted(errors))


def _troubles(one: _Communicator) -> Iterator[RasTrouble]:
    def made(kind: str, rank: _Rank, text: str = "") -> RasTrouble:
        return RasTrouble(
            kind=kind,
            communicator=one.hash[:_MAX_NAME],
            size=one.size,
            rank=_named(rank),
            text=text,
        )

    for rank in one.missing_ranks:
        away = "unresponsive" if rank.status.unresponsive else "status"
        kind = "dead" if rank.status.considered_dead else away
        yield made(kind, rank, "NOCOMM" if kind == "status" else "")
    usual = Counter(map(_state, one.ranks)).most_common(1)
    for rank in one.ranks:
        for code in (rank.status.init_state, rank.status.async_error):
            if code not in (0, _IN_PROGRESS):
                yield made("error", rank, _RESULTS.get(f"{code}", f"NCCL result {code}"))
        if _state(rank) != usual[0][0]:
            yield made("status", rank, _state(rank))


def _launches(one: _Communicator) -> list[RasLaunches]:
    """Launch counts of operations that ranks have launched different numbers of, highest first."""
    made = []
    for operation in sorted({name for rank in one.ranks for name in rank.collective_counts}):
        by_count = grouped((rank.collective_counts.get(operation, 0), rank) for rank in one.ranks)
        if len(by_count) > 1:
            made += [
                RasLaunches(
                    communicator=one.hash[:_MAX_NAME],
                    size=one.size,
                    operation=operation[:_MAX_NAME],
                    launched=count,
                    num_ranks=len(ranks),
                    ranks=tuple(map(_named, ranks)),
                )
                for count, ranks in sorted(by_count.items(), reverse=True)
            ]
    return made
