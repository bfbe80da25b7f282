"""Reads what jobs print, in one pass and bounded memory: files, folders, globs.

Lines may carry launcher prefixes and colours, progress bars may overwrite lines, several ranks may
share a file, and files may be gzipped.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.bounds import byte_patterns_beside, patterns_beside, table_beside
from distprof.ingest.files import DAMAGE, Blocks, opened
from distprof.ingest.output.expressions import Expression, expressions, signs
from distprof.ingest.output.stacks import end_of, headed, listed_stacks, stacks_in
from distprof.ingest.wrapped import INNER
from distprof.run.logs import JobOutput, OutputEvent, OutputStack
from distprof.run.topology import DEFAULT_GROUPS

MAX_EVENTS = 20_000
MAX_OF_A_KIND = 64
"""Events of one wording and rank that are kept."""

MAX_STACKS = 20_000
MAX_TEXT = 300
_END = 1 << 16
"""Bytes at the end of a file of which the last line of each rank is kept."""

_LONG, _SAID_LINES = 2_000, 100  # Lines of a file, and those at its ends that people may write
STAGE_LINES = 12
"""Lines after a stage of the start that still say that a text ends in it."""

_TOLD_LINES = 400
"""Lines at the end of a text that are kept."""

_MAX_RECORD_BYTES = 1 << 14
_MAX_STACK_BYTES = 1 << 16
_MAX_TRIES = 2_000
"""Lines of a file that are matched with one expression: later ones say the same."""

MAX_CALLS = 20_000
"""Lines of a file that are matched with one expression of calls, of which the last counts."""

_MAX_RECORD_TRIES = 500
_WINDOW = 4_096
_LINE_END = ord("\n")
_BEFORE_SIGN = 600
_MAX_WORLD = 1 << 20
_MAX_BROKEN = 5
_LEAST_BROKEN = 60  # shorter lines were not broken by a terminal
_HOW = patterns_beside(__package__, "read.toml")
_KINDS: Mapping[str, list[str]] = table_beside(__package__, "read.toml")["kinds"]
WEAK, AT_END = {*_KINDS["weak"]}, "at end"
"""Kinds of lines that say little if a job trains after them, and what is added if none follows."""

_RAW = byte_patterns_beside(__package__, "read_bytes.toml")
_PLAIN = bytes((9, 10, *range(0x20, 0x7F)))
"""Bytes that need no cleaning."""

_REST_OF_CHARACTER = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character: text is cut at bytes."""


def prefix_rank(line: str) -> int | None:
    """The rank that a launcher put before a line; None if there is none."""
    return _prefix(line[:200])[0]


@lru_cache(1024)  # several expressions read the same lines
def _prefix(line: str) -> tuple[int | None, int]:
    """The rank before a line, and where the line begins behind it."""
    found = _HOW["prefix"].match(line)
    if found is None:
        return None, 0
    return int(next(group for group in found.groups() if group)), found.end()


def cleaned(raw: bytes) -> str:
    """Text without control characters."""
    text = raw.lstrip(_REST_OF_CHARACTER).decode("utf-8", "replace")
    if raw.translate(None, _PLAIN):
        text = _HOW["controls"].sub("", text)
    return _HOW["repeated"].sub("", text) if "x across cluster]" in text else text


class Reader:
    """Collects events and stacks over files."""

    def __init__(self) -> None:
        self.events: dict[tuple[object, ...], OutputEvent] = {}
        self.stacks: list[OutputStack] = []
        self.ranks: set[int] = set()
        self.notes: list[str] = []
        self.lines_of: dict[str, int] = {}
        self.last_lines: dict[int, str] = {}
        self.ends: dict[str, tuple[str, ...]] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._tries: Counter[str] = Counter()
        self._worlds: Counter[int] = Counter()
        self._num_dropped = 0
        self._has_more_calls = False
        self._has_nodes = False  # whether labels of lines number nodes
        self._dumped: dict[bytes, int] = {}  # the lines at which stacks of a file end, by prefix
        self._time: float | None = None  # the last one that was read
        self._timed = 0  # up to which place of the present block

    def take_file(self, path: str, shown: str, rank: int | None) -> None:
        """Read a file or URL that reports call ``shown``; its rank is None if no name tells it."""
        try:
            with opened(path) as stream:
                blocks = Blocks(stream, INNER)
                self.take_blocks(blocks, shown, rank)
        except DAMAGE as error:
            self.notes.append(f"Cannot read {shown}: {' '.join(str(error).split())[:200]}.")
            return
        if blocks.damage:
            self.notes.append(f"{shown} was read only up to the damage: {blocks.damage}.")

    def take_blocks(self, blocks: Iterable[bytes], shown: str, rank: int | None) -> None:
        """Read blocks of whole lines.

        A record of several lines near the end of a block is read with the next block.
        """
        rest, end, before, self._time = b"", b"", 0, None
        self._dumped.clear()
        skip, self._has_nodes = 0, False
        for block in blocks:
            self._has_nodes |= _RAW["of_nodes"].search(block, 0, _END) is not None
            data = rest + block if rest else block
            end = (end + block[-_END:])[-_END:]
            keep = self._take(data, skip, before, shown, rank, is_last=False)
            self._time_at(data, keep, keep)
            most = max(row.before for row in expressions())
            first = _line_back(data, keep, most) if keep < len(data) else keep
            before += len(_line_ends(data[:first]))
            rest, skip = data[first:], keep - first
        self._take(rest, skip, before, shown, rank, is_last=True)
        number = before + len(_line_ends(rest)) + (bool(end) and not end.endswith(b"\n"))
        self.lines_of[shown] = self.lines_of.get(shown, 0) + number
        if rank is not None:
            self.ranks.add(rank)
        self._keep_last(end, shown, rank)

    def _time_at(self, data: bytes, start: int, end: int) -> float | None:
        """The time of a line, or the last one before it."""
        self._time = _time_of(data[max(start - _WINDOW, self._timed) : end]) or self._time
        self._timed = max(self._timed, end)
        return self._time

    def _keep_last(self, end: bytes, shown: str, rank: int | None) -> None:
        """Keep the last lines of a file, and of each rank."""
        if len(self.ends) < MAX_OF_A_KIND:
            lines = end.removesuffix(b"\n").split(b"\n")[-_TOLD_LINES:]
            kept = (cleaned(line).rstrip() for line in lines)
            self.ends[shown] = tuple(
                line[-MAX_TEXT:] if line.count("%|") > 1 else line[:MAX_TEXT] for line in kept
            )
        for line in cleaned(end).split("\n"):
            by_prefix, start = _prefix(line[:200])
            writer = rank if by_prefix is None else by_prefix
            if writer is not None and (text := line[start:].strip()):
                self.last_lines[writer] = text[:MAX_TEXT]
                if line.startswith("[rank") and "ProcessGroup" not in line:
                    self.ranks.add(writer)  # that does not report a time-out

    def _take(
        self, data: bytes, skip: int, before: int, shown: str, rank: int | None, *, is_last: bool
    ) -> int:
        """Read a block from ``skip`` on; returns where the next block must begin again."""
        seen = set[tuple[int, str]]()
        line_ends: NDArray[np.int64] | None = None
        self._timed = 0
        if before == 0:
            self._tries.clear()
        for at, row in signs().find(data):
            at += data.startswith(b"\n", at)
            if at < skip:
                continue
            start = _line_start(data, at)
            most = _MAX_RECORD_TRIES if row.after or row.yields == "stack" else _MAX_TRIES
            most = MAX_CALLS if row.yields == "calls" else most
            if (start, row.name) in seen or self._tries[row.name] >= most:
                self._has_more_calls |= row.yields == "calls" and self._tries[row.name] >= most
                continue
            spans_lines = row.after or row.before or row.wraps
            is_cut = spans_lines and not is_last and len(data) - at < _MAX_RECORD_BYTES
            if is_cut and start > skip:
                return start
            seen.add((start, row.name))
            line_ends = _line_ends(data) if line_ends is None else line_ends
            number = before + 1 + int(line_ends.searchsorted(start))
            dumped = self._dumped.items() if row.yields == "stack" else ()
            if any(number < end and data.startswith(prefix, start) for prefix, end in dumped):
                continue  # another thread of the process
            self._tries[row.name] += 1
            self._match(data, start, at, row, number, shown, rank)
        return len(data)

    def _match(
        self,
        data: bytes,
        start: int,
        at: int,
        row: Expression,
        number: int,
        shown: str,
        rank: int | None,
    ) -> None:
        end = _line_end(data, at)
        if row.yields == "stack":
            if row.search(cleaned(data[start:end])) is not None:
                writer = _prefixed(data, start, at, end, row)
                if row.name == "stack-listed":
                    if writer is None:
                        first = _line_back(data, start, row.before)
                        self._keep_listed(data, first, start, number, shown)
                    return
                first = _first_frame(data, start) if row.before else start
                line = number - len(_line_ends(data[first:start]))
                self._keep_stacks(data, first, line, shown, rank if writer is None else writer)
            return
        if row.yields == "preparing" and data[start - 1 : start] != b"\n":  # after a bar
            start = _line_back(data, start, 1)
        fields = _fields(data, start, at, end, row)
        is_title = number == 1 and data.startswith(b"\n\n", end)
        if fields is None and is_title and "#{1,3} " in row.pattern:
            fields = row.search(f"# {cleaned(data[start:end])}")  # written without its mark
        if fields is None or _is_noise(data[max(start, at - _BEFORE_SIGN) : at], data[at:end], row):
            return
        if row.yields == "preparing" and row.before > data.count(b"%|", start, at):
            start = _line_back(data, start, 1)  # the bar, which another rank may draw
        by_prefix = _prefixed(data, start, at, end, row)
        if self._has_nodes and _HOW["node"].match(cleaned(data[start : start + 40])):
            by_prefix = None
        writer = rank if by_prefix is None else by_prefix
        rank = _subject(fields, writer)
        writer = rank if fields.get("group") == DEFAULT_GROUPS[0] else writer
        key = (row.name, rank, *sorted(fields.items()))
        key = (*key, number) if row.yields in _KINDS["each"] or is_title else key
        if row.yields in _KINDS["latest"]:
            key = (row.name, fields.get("comm"), fields.get("process"), fields.get("own"))
        if (known := self.events.get(key)) is not None and known.file == shown:
            self.events[key] = replace(known, again=number)
        if self._is_new(row, fields, writer, key):
            short = {name: value[: 2 * MAX_TEXT] for name, value in fields.items()}
            first = max(start, at - 120)
            word = data.rfind(b" ", max(start, first - 80), first) + 1 or first
            first = data.rfind(b". ", first, at if first > start else first) + 1 or word
            short |= {name: fields[name] for name in ("stalled",) if name in fields}
            if "frames" in fields:
                short["frames"] = end_of(fields["frames"])
            self.events[key] = OutputEvent(
                name=row.name,
                yields=row.yields,
                file=shown,
                line=number,
                text=cleaned(data[first:end])[:MAX_TEXT].strip(),
                rank=rank,
                at_s=self._time_at(data, start, end),
                fields=short,
            )

    def _is_new(
        self, row: Expression, fields: dict[str, str], writer: int | None, key: tuple[object, ...]
    ) -> bool:
        """Whether to keep an event; counts it if so."""
        if writer is not None:
            self.ranks.add(writer)
        world = fields.get("world", "")
        if world.isdigit() and len(world) < 8 and 0 < int(world) <= _MAX_WORLD:
            self._worlds[int(world)] += 1
        if row.yields == "world":
            return False
        if known := self.events.get(key):  # the last one counts, but not bars of other ranks
            is_other = fields.get("percent") == "0" != known.fields.get("percent", "0")
            return row.yields in ("phase", *_KINDS["latest"]) and not is_other
        most = {"begun": MAX_EVENTS, "setup": _MAX_TRIES}.get(row.yields, MAX_OF_A_KIND)
        if self._counts[key[:2]] >= most or len(self.events) >= MAX_EVENTS:
            self._num_dropped += 1
            return False
        self._counts[key[:2]] += 1
        return True

    def _keep_listed(self, data: bytes, first: int, start: int, number: int, shown: str) -> None:
        """Keep stacks that someone listed under the ranks that they are of."""
        texts = (cleaned(data[first:start]), cleaned(data[start : start + _MAX_STACK_BYTES]))
        stacks, count = listed_stacks(*(text.splitlines() for text in texts))
        self._dumped[b""] = number + count
        found = (OutputStack(file=shown, line=number, rank=rank, calls=calls)
                 for ranks, calls in stacks for rank in ranks)  # fmt: skip
        self.stacks += islice(found, MAX_STACKS - len(self.stacks))

    def _keep_stacks(
        self, data: bytes, start: int, number: int, shown: str, rank: int | None
    ) -> None:
        text = cleaned(data[start : start + _MAX_STACK_BYTES])
        first, *rest = text.splitlines()
        before = first[: found.start()] if (found := _HOW["stack"].search(first)) else ""
        own: Sequence[int] = range(1, len(rest) + 1)
        if before.strip():
            own = [at for at in own if rest[at - 1].startswith(before)] or own
            lines = [first, *(rest[at - 1] for at in own)]
            text = "\n".join(line.removeprefix(before) for line in lines)
        crashed = b"Fatal Python error" in data[max(start - 200, 0) : start]
        calls, named, count = stacks_in(text, is_crash=crashed)
        above = cleaned(data[max(start - _WINDOW, 0) : start]).replace(before, "")
        if rank is None and named is None:
            named = headed(above)
        behind = [0, *own][: max(count, 1)][-1] + 1
        self._dumped[data[start : start + len(before)]] = number + behind
        if calls and len(self.stacks) < MAX_STACKS:
            whose = rank if named is None else named
            over = _HOW["process_over"].search(above[-2 * MAX_TEXT :])
            stack = OutputStack(file=shown, line=number, rank=whose, calls=calls)
            self.stacks.append(replace(stack, process=over[1]) if over else stack)

    def result(self, files: Iterable[str]) -> JobOutput:
        """What was read from the files."""
        notes = list(self.notes)
        if self._num_dropped:
            notes.append(
                f"{self._num_dropped:,} more lines of the same kinds were left out: distprof keeps "
                f"{MAX_OF_A_KIND} of each kind and rank."
            )
        return JobOutput(
            files=tuple(files),
            events=tuple(filter(self._is_said, self.events.values())),
            stacks=tuple(self.stacks),
            ranks=tuple(sorted(self.ranks)),
            world_size=max(self._worlds, default=None),
            num_lines=sum(self.lines_of.values()),
            lines_of=dict(self.lines_of),
            last_lines=dict(self.last_lines),
            ends=dict(self.ends),
            notes=tuple(notes),
        )

    def _is_said(self, event: OutputEvent) -> bool:
        """Whether it may be said of the job: not calls that are cut off, nor texts in a program."""
        num = self.lines_of.get(event.file, 0)
        is_within = num > _LONG and _SAID_LINES < event.line < num - _SAID_LINES
        is_left_out = is_within and event.yields in ("absent", "complaint", "silence")
        return not (is_left_out or (event.yields == "calls" and self._has_more_calls))


def _is_noise(before: bytes, behind: bytes, row: Expression) -> bool:
    """Whether a line is that of a debugging or quoted log, or of a program's text: no error."""
    if {row.yields, row.name} & {*_KINDS["always"]}:
        return False
    if _RAW["source"].match(before):
        return True
    near = before + behind
    may_be = b"NCCL" in near or b"DEBUG" in near or b"pyxis" in near
    return may_be and _HOW["noise"].search(cleaned(near)) is not None


def _prefixed(data: bytes, start: int, at: int, end: int, row: Expression) -> int | None:
    """The rank that a launcher put before a line; None without one."""
    rank = prefix_rank(cleaned(data[start : min(start + 200, end)]))
    if rank is None and start == at and "frames" in row.fields:  # copied from the sign on
        rank = prefix_rank(cleaned(data[end + 1 : end + 201].split(b"\n", 1)[0]))
    if rank is None and row.after:  # a bar of progress lacks its line end
        behind = _HOW["behind"].search(cleaned(data[max(start, at - 24) : at]))
        rank = int(behind[1]) if behind else None
    return rank


def _line_start(data: bytes, at: int) -> int:
    """Where the line of a sign begins."""
    start = data.rfind(b"\n", 0, at) + 1
    joined = data.rfind(b"]:", max(start, at - _BEFORE_SIGN), at)
    while joined > 0:
        first = max(data.rfind(b"[", start, joined), start)
        if _RAW["joined"].match(data, first):
            return first
        joined = data.rfind(b"]:", max(start, at - _BEFORE_SIGN), joined)
    return start


def _line_end(data: bytes, at: int) -> int:
    """Where the line of a sign ends."""
    end = data.find(b"\n", at, at + _WINDOW)
    end = min(at + _WINDOW, len(data)) if end < 0 else end
    joined = _RAW["joined"].search(data, at, end) if data.find(b"]:", at, end) > 0 else None
    return joined.start() if joined else end


def _fields(data: bytes, start: int, at: int, end: int, row: Expression) -> dict[str, str] | None:
    """What an expression captures from a line or record; None if it is of another wording."""
    if row.before or row.after:
        first = _line_back(data, start, row.before)
        last = _line_forward(data, end, row.after)
        text = cleaned(data[first : min(last, first + _MAX_RECORD_BYTES)])
        before = "" if row.before else cleaned(data[start:at])
        return row.search(_without_prefixes(text, _prefixed(data, start, at, end, row), before))
    last = _end_of_wrapped(data, end) if row.wraps else end
    text = cleaned(data[max(start, at - _BEFORE_SIGN) : last]).rstrip()
    fields = _searched(row, text)
    if fields is None and (begins := _prefix(text[:200])[1]):
        fields = _searched(row, text[begins:])
    if row.wraps and "own" not in (fields or {}):
        before = cleaned(data[_start_of_wrapped(data, start) : start])
        fields = fields if _searched(row, before) else _searched(row, before + text) or fields
    return fields


def _time_of(data: bytes) -> float | None:
    """The last time in a text, as seconds that ascend within a year."""
    last = next(iter(deque(_RAW["time"].finditer(data), maxlen=1)), None)
    if last is None:
        return None
    month, day, hour, minute = (int(last[name]) for name in ("mon", "day", "hour", "minute"))
    return ((month * 31.0 + day) * 24 + hour) * 3600 + minute * 60 + float(last["second"])


def _subject(fields: Mapping[str, str], writer: int | None) -> int | None:
    """The rank that a line is about: as named, else its writer.

    ``own`` is the writer's rank in the process group of the line. It is the global rank only if
    that group is the default one, and then says more than a launcher's prefix, which may be local.
    """
    named, group = fields.get("rank", ""), fields.get("group", "") or fields.get("pg", "")
    if not named and (told := _HOW["told"].match(fields.get("message", ""))):
        named = told[1]
    if not named and group in (DEFAULT_GROUPS if writer is None else DEFAULT_GROUPS[:1]):
        named = fields.get("own", "")
    return int(named) if named.isdigit() and len(named) < 8 else writer


def _searched(row: Expression, text: str) -> dict[str, str] | None:
    """What a row captures from lines that a terminal broke anywhere, or a writer between words."""
    if not row.wraps or "\n" not in text:
        return row.search(text)
    joined = (row.search(text.replace("\n", by)) for by in ("", " "))
    return max(joined, key=lambda fields: len(fields or ()))


def _line_back(data: bytes, start: int, count: int) -> int:
    """Start of the line ``count`` lines before the one that begins at ``start``."""
    for _ in range(count):
        start = data.rfind(b"\n", 0, max(start - 1, 0)) + 1
    return start


def _first_frame(data: bytes, start: int) -> int:
    """Start of a debugger's stack, with the line of its thread, some of whose frames are broken."""
    first = start
    for _ in range(16):
        before = _line_back(data, first, 1)
        if before == first or not _RAW["frame"].match(data[before : before + 80]):
            break
        first = before
        if b"#0" in data[first : first + 70]:
            break
    before = _line_back(data, first, 1)
    return before if _RAW["thread"].match(data[before : before + 80]) else first


def _line_ends(data: bytes) -> NDArray[np.int64]:
    """Where the lines of the file end: not those within a text of one of its lines."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == _LINE_END)
    return ends[text[ends - 1] != INNER[0]] if INNER in data else ends


def _line_forward(data: bytes, end: int, count: int) -> int:
    """End of the line ``count`` lines after the one that ends at ``end``, or of what is read."""
    following = data[end + 1 : end + 1 + _MAX_RECORD_BYTES].split(b"\n", count)
    return end + sum(map(len, following[:count])) + min(count, len(following))


def _start_of_wrapped(data: bytes, start: int) -> int:
    """Start of the lines into which a terminal broke the one that begins at ``start``."""
    for _ in range(_MAX_BROKEN):
        before = _line_back(data, start, 1)
        if start - before < _LEAST_BROKEN or _RAW["new_line"].match(data[start : start + _WINDOW]):
            break
        start = before
    return start


def _end_of_wrapped(data: bytes, end: int) -> int:
    """End of the lines into which a terminal broke the one that ends at ``end``."""
    for _ in range(_MAX_BROKEN):
        following = data[end + 1 : end + 1 + _WINDOW].split(b"\n", 1)[0]
        is_whole = data[end - 2 : end] == b"  " or not following.strip()
        if is_whole or _RAW["new_line"].match(following):
            break
        end += 1 + len(following)
    return end


@lru_cache(16)
def _without_prefixes(text: str, own: int | None, before: str) -> str:
    """The lines of a record without a launcher's prefix, and without lines of other ranks.

    ``before`` is the text before the record in its first line: if the next line begins with it,
    too, it is a prefix.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    frames = [line for line in lines[1:2] if before and '  File "' in line]
    for head in (before, *(line.partition('  File "')[0] for line in frames)):
        timed = re.compile(r"[\d:.,T/-]{5,40}".join(map(re.escape, _HOW["times"].split(head))))
        if head and any(timed.match(line) for line in lines[1:3]):
            found = (timed.match(line) for line in lines[1:])
            own_lines = [one.string[one.end() :] for one in found if one is not None]
            return "\n".join((lines[0][len(before) :], *own_lines))
    prefixes = [_prefix(line[:200]) for line in lines]
    if not any(end for _, end in prefixes):
        return text
    return "\n".join(
        line[end:]
        for line, (rank, end) in zip(lines, prefixes, strict=True)
        if rank == own or (rank is None and line is lines[0])
    )


def kinds_in(data: bytes) -> set[str]:
    """What the lines of a part of a file are about, without what healthy jobs print, too."""
    reader = Reader()
    reader.take_blocks([data], "", None)
    events = reader.result([]).events
    kinds = {event.yields for event in events} - {*_KINDS["quiet"]}
    last = reader.lines_of.get("", 0) - STAGE_LINES
    at_end = ("stage", "preparing", "wait", "finished", "closed")
    ended = [event for event in events if max(event.line, event.again) >= last]
    kinds |= {e.yields for e in ended if e.yields in at_end and "gone" not in e.fields}
    kinds |= {AT_END} if any(e.yields in WEAK for e in ended) else set()
    return kinds | {"stack"} if reader.stacks else kinds


def read_output(files: Iterable[tuple[str, str, int | None]]) -> JobOutput:
    """Read files of one job."""
    reader = Reader()
    names = []
    for path, name, rank in files:
        reader.take_file(path, name, rank)
        names.append(name)
    return reader.result(names)
