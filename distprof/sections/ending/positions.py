"""Who is behind in a process group, from what the watchdogs of its ranks printed."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.run.logs import JobOutput, OutputEvent
from distprof.run.topology import DEFAULT_GROUPS
from distprof.sections.ending import STUCK, EndingPosition, EndingResult
from distprof.sections.ending.words import words
from distprof.sections.table import counted
from distprof.units import capitalized, format_duration, name_ranks, verb

_MAX_GAP = 1_000
"""A rank can be ahead of another in one group by what NCCL buffers: some dozens of broadcasts."""

_NUMBERS = ("seq", "enqueued", "completed", "waited_ms", "timeout_ms")
_MAX_QUOTE = 120
_GLOO, _OTHER = "gloo-timeout", "an unnamed group"
OF_WATCHDOGS = ("timeout", "position", "frozen")
_CUT_LINES = 2  # a fence, or the beginning of a line that is cut off


def positions_of(output: JobOutput) -> list[EndingPosition]:
    """One position per group and rank, from all lines of that rank."""
    events = [e for e in output.events if e.yields in ("timeout", "position")]
    if any({"seq", "enqueued"} & e.fields.keys() for e in events):
        events = [e for e in events if e.name != _GLOO]  # that waits in none of these numbers
    guids = grouped((_group(event), event.fields.get("guid", "")) for event in events)
    same = grouped(((_group(e), e.number("own")), e.rank) for e in events if e.rank is not None)
    doubled = {name for (name, own), who in same.items() if own is not None and len({*who}) > 1}

    def group_of(event: OutputEvent) -> str:
        """Its group; groups of one name, such as those of tensor parallelism, have own GUIDs."""
        name, guid = _group(event), event.fields.get("guid", "")
        is_shared = name and guid and len({*guids[name]} - {""}) > 1
        if name in doubled - {""} and not is_shared and event.rank is not None:
            return f"{name} of rank {event.rank}"  # whose other members are unknown
        return (guid if name == event.fields.get("pg") else f"{name} {guid}") if is_shared else name

    told = {group_of(e) for e in events if {"group", "pg"} & e.fields.keys()}
    numbers = [n for e in events if (n := e.number("seq")) is not None]
    is_one = len(told) == 1 and max(numbers, default=0) - min(numbers, default=0) <= _MAX_GAP
    placed = [e for e in events if e.yields == "position" and e.number("seq") is not None]
    groups = {(e.rank, e.number("seq")): group_of(e) for e in placed}
    shared = grouped((e.number("seq"), group_of(e)) for e in placed)  # in which ranks wait
    named = (e for e in events if e.rank is not None and "own" in e.fields)  # as members
    whose = grouped(((group_of(e), e.number("own")), e.rank) for e in named)
    apart = _numbers_apart(events)
    found: dict[tuple[str, int, bool], EndingPosition] = {}
    for event in events:
        number, own = event.number("seq"), event.number("own")
        only = {*shared.get(number, ())}
        writers = {*whose.get((group_of(event), own), ())} if event.rank is None else {event.rank}
        rank = next(iter(writers)) if len(writers) == 1 else own
        group = group_of(event) or groups.get(
            (rank, number),
            next(iter(only)) if len(only) == 1 else next(iter(told)) if is_one else "",
        )
        if rank is None:
            continue
        is_inner = own not in (None, event.rank) and event.text.startswith("[rank")
        group = group or apart.get(number, _OTHER * is_inner)
        key = (group, rank, len(writers) == 1)
        found[key] = _merged(found.get(key), event, *key)
    return sorted(found.values(), key=lambda one: (one.group, one.rank))


def _numbers_apart(events: Iterable[OutputEvent]) -> dict[int | None, str]:
    """Numbers far below another that the same rank waits in, which is then of another group."""
    waits = [e for e in events if e.yields == "timeout" and not {"group", "pg"} & e.fields.keys()]
    of_rank = grouped((e.rank, n) for e in waits if (n := e.number("seq")) is not None)
    highest = max((n for some in of_rank.values() for n in some), default=0)
    low = {n for some in of_rank.values() for n in some if n + _MAX_GAP < max(some) == highest}
    return dict.fromkeys(low, _OTHER)


def _group(event: OutputEvent) -> str:
    name = event.fields.get("group", "") or event.fields.get("pg", "")
    return "" if name in DEFAULT_GROUPS else name


def _merged(
    before: EndingPosition | None, event: OutputEvent, group: str, rank: int, is_global: bool
) -> EndingPosition:
    """A position with what one more line says; the first operation that timed out counts."""
    before = before or EndingPosition(
        rank=rank, is_global=is_global, group=group, op="", size="", **dict.fromkeys(_NUMBERS)
    )
    seq, fields = event.number("seq"), event.fields
    is_first = before.seq is None or (seq is not None and seq < before.seq)

    def most(name: str, known: int | None) -> int | None:
        return max((n for n in (event.number(name), known) if n is not None), default=None)

    enqueued, completed = most("enqueued", before.enqueued), most("completed", before.completed)
    if None not in (enqueued, completed) and (completed or 0) > (enqueued or 0):
        completed = None  # torch 2.3 prints what memory held before the first collective ended
    if event.yields == "timeout" and (is_first or (seq == before.seq and "op" in fields)):
        before = replace(
            before,
            op="GLOO" if event.name == _GLOO and "op" in fields else fields.get("op", ""),
            size=fields.get("numel_in") or fields.get("shape") or before.size * (not is_first),
            waited_ms=event.number("ran_ms") or (None if is_first else before.waited_ms),
            timeout_ms=event.number("timeout_ms") or (None if is_first else before.timeout_ms),
        )
    seq = seq if is_first and seq is not None else before.seq
    found = replace(before, seq=seq, enqueued=enqueued, completed=completed)
    return replace(found, seq=_first_pending(found)) if "local" in fields and seq is None else found


def diagnose_positions(output: JobOutput) -> EndingResult | None:
    """The rank that others wait for; None if no watchdog printed a position."""
    positions = positions_of(output)
    if len({p.enqueued for p in positions}) > 1 and not any(map(_waits, positions)):
        # Only dumps tell where ranks stand: those with pending work wait in the first of it
        positions = [replace(p, seq=_first_pending(p)) for p in positions]
    groups = grouped((one.group, one) for one in positions)
    waiting = {name: some for name, some in groups.items() if any(_waits(p) for p in some)}
    if not waiting:
        told = {n for e in output.events if (n := e.number("told")) is not None}
        return _frozen(positions, output, told) or _told(positions, told)
    found = [_of_group(name, some, output) for name, some in waiting.items()]
    order = ("mismatch", "behind", "silent", "unfinished")
    first = min(found, key=lambda one: order.index(one.cause))
    if first.cause == "behind" and (root := _root(first, dict(zip(waiting, found, strict=True)))):
        return root
    if first.cause not in ("mismatch", "behind") and len(found) > 1:
        if _OTHER in waiting:  # the numbers of ranks may be those of members, too
            return _in_groups(waiting, output)
        if "" not in waiting:
            return min(_in_groups(waiting, output), first, key=lambda p: order.index(p.cause))
    return first


def _root(late: EndingResult, found: Mapping[str, EndingResult]) -> EndingResult | None:
    """What ranks that are behind in one group wait for in another; None if they wait in none."""
    for other in found.values():
        held = {p.rank for p in other.positions if p.is_global and p.op} & set(late.ranks)
        if other is late or held != set(late.ranks) or not held or held & set(other.ranks):
            continue
        if other.cause == "behind" and set(other.ranks) <= {p.rank for p in late.positions if p.op}:
            texts = (one.verdict.removeprefix("Stuck: ").rstrip(".") for one in (late, other))
            text = words().says("circle", what=capitalized(". ".join(texts)))
            both, steps = (*late.positions, *other.positions), words().steps["opposite orders"]
            return _stuck("mismatch", text, both, next_steps=steps)
        if other.cause != "behind" and len({p.rank for p in other.positions}) > len(held):
            who = name_ranks(sorted(held))
            return replace(other, why=(*other.why, f"In another group, others wait for {who}."))
    return None


def _in_groups(waiting: Mapping[str, Sequence[EndingPosition]], output: JobOutput) -> EndingResult:
    """Ranks that wait in several groups, in none of which a rank is known to be behind."""
    texts = [_wait_text(name, [*filter(_waits, some)]) for name, some in waiting.items()]
    what, positions = "; ".join(texts[:4]), [one for some in waiting.values() for one in some]
    held = {one.rank for one in positions if _waits(one)}
    held |= {e.rank for e in output.events if "local" in e.fields and e.rank is not None}
    free = sorted({*output.ranks} - held) if all(one.is_global for one in positions) else []
    if 0 < len(free) <= len(held):
        who, what = name_ranks(free), capitalized(what)
        text = words().says("in no group", who=who, waits=verb(free, "wait"), what=what)
        return _stuck("silent", text, positions, suspects=tuple(free))
    text = words().says("groups", what=what)
    return _stuck("unfinished", text, positions, alternatives=words().steps["different groups"])


def _stuck(
    cause: str, text: str, positions: Sequence[EndingPosition], **fields: Any
) -> EndingResult:
    return EndingResult(
        state=STUCK, cause=cause, verdict=f"Stuck: {text}", positions=tuple(positions), **fields
    )


def _wait_text(name: str, waiting: Sequence[EndingPosition]) -> str:
    shown = name if all(one.is_global for one in waiting) else ""
    lowest = min((one.seq for one in waiting if one.seq is not None), default=None)
    by_number = grouped(
        (p.op if _is_of_two(p) else lowest if p.seq is None else p.seq, p) for p in waiting
    )
    texts = []
    for some in by_number.values():
        one = max(some, key=lambda one: (bool(one.op), one.seq is not None))
        what = _operation(one if len({p.seq for p in some}) == 1 else replace(one, seq=None), shown)
        if {(one.op, one.size) for one in some} - {("", "")} == {("ALLREDUCE", "1")}:
            what += " (1 element, as in a barrier)"
        texts.append(f"{_who(some, name)} {verb(some, 'wait')} in {what}")
    return "; ".join(texts[:4])


def _first_pending(one: EndingPosition) -> int | None:
    """The first operation that a rank launched and did not complete."""
    if one.enqueued is None or one.completed is None or one.enqueued <= one.completed:
        return None
    return one.completed + 1


def _is_of_two(one: EndingPosition) -> bool:
    """Whether a rank may wait for one other: then numbers and operations differ by nature."""
    return one.op.upper() in ("SEND", "RECV", "COALESCED")


def _waits(one: EndingPosition) -> bool:
    return bool(one.op) or (one.seq is not None)


def _of_group(name: str, positions: Sequence[EndingPosition], output: JobOutput) -> EndingResult:
    waiting = [one for one in positions if _waits(one)]
    known = [one.seq for one in waiting if one.seq is not None]
    highest = max(known, default=None)
    late = [p for p in positions if _launched(p) is not None and highest is not None
            and _is_late(p, positions, highest) and not any(map(_is_of_two, waiting))]  # fmt: skip
    if late and len(late) < len(positions):
        return _behind(name, late, positions)
    first = min(known, default=None)
    shared = [one for one in waiting if one.op and one.seq == first]
    unequal = _mismatch(shared)
    if unequal is not None:
        return _unequal(name, unequal, shared)
    silent = _silent(positions, output)
    text = _wait_text(name, waiting)
    if silent:
        who, are = name_ranks(silent), "they are" if len(silent) > 1 else "it is"
        rest = words().says("silent", who=who, are=are)
        # Whether a file ends in the lines of its watchdogs: those of other ranks may be cut off
        last = ((e.file, e.line) for e in output.events if e.yields in OF_WATCHDOGS)
        ends = (output.lines_of.get(file, 0) - line for file, line in dict(last).items())
        if at_last := last_said(silent, output):
            rest += f" {at_last}"
        elif min(ends, default=_CUT_LINES + 1) <= _CUT_LINES:
            rest = words().says("ends there", who=who, are=are)
        return _stuck("silent", text + rest, positions, suspects=silent)
    frozen = sorted(_ranks_of("frozen", output) - {one.rank for one in waiting})
    if frozen and all(one.is_global for one in positions):
        who = f"{capitalized(name_ranks(frozen))} {verb(frozen, 'report')}"
        text += f". {words().says('frozen, too', who=who)}"
        return _stuck("unfinished", text, positions, suspects=tuple(frozen))
    if len(waiting) > 1 and all(one.op == "SEND" for one in waiting):
        return _stuck("unfinished", f"{text}. {words().said['all send']}", positions)
    moved = _bar_moved(output) if len(positions) == 1 and positions[0].rank else ""
    if moved:
        text += f". {words().says('moving bar', what=moved)}"
        steps = (*words().steps["moving bar"], *words().steps["record"])
        return _stuck("silent", text, positions, next_steps=steps)
    sizes = sorted({int(p.size) for p in shared if p.op == "COALESCED" and p.size.isdigit()})
    differ = words().says("sizes", sizes=" and ".join(f"{n:,}" for n in sizes[:3]))
    text += f". {differ if len(sizes) > 1 else _whether_behind(waiting, positions, output)}"
    return _stuck("unfinished", text, positions)


def last_said(ranks: Sequence[int], output: JobOutput) -> str:
    """What ranks printed last, if it is not about a time-out; empty without any."""
    last = {rank: output.last_lines[rank] for rank in ranks if rank in output.last_lines}
    told = [f"{name_ranks([rank])}: “{line[:_MAX_QUOTE]}”" for rank, line in last.items()
            if not words().search("of_torch", line)]  # fmt: skip
    return f"The last line of {', of '.join(told[:3])}." if told else ""


def _whether_behind(
    waiting: Sequence[EndingPosition], positions: Sequence[EndingPosition], output: JobOutput
) -> str:
    """What is known of the other ranks of the group."""
    joined = [e for e in output.events if e.yields == "joined"]
    everyone = {rank for e in joined if e.number("seq") == waiting[0].seq for rank in e.ranks()}
    if everyone:
        return words().says("joined", who=capitalized(name_ranks(sorted(everyone))))
    lost = _ranks_of("peer", output) - {one.rank for one in positions}
    if len(positions) > 1 and lost and all(one.is_global for one in positions):
        return words().says("lost", who=f"{capitalized(name_ranks(lost))} {verb(lost, 'report')}")
    own = {one.rank for one in positions if one.op == "GLOO"}
    ends = (e.fields.get("peer") for e in output.events if e.yields == "peer" and e.rank in lost)
    if own and (peer := next(filter(None, ends), "")):
        who = capitalized(name_ranks(sorted(lost)))
        return words().says("gloo lost", who=who, peer=peer, one=name_ranks(own))
    if any(event.name == _GLOO and event.rank not in own for event in output.events):
        return words().said["gloo"]
    if words().search("said_all", " ".join(output.end_lines)):
        return words().says("joined", who="By its author, every rank")
    members, count = _members(output), len(waiting)
    world = 0 if waiting[0].group else output.world_size or _said_world(output)
    is_same = len({one.seq for one in waiting}) == 1 and not any(map(_is_of_two, waiting))
    is_same &= len({one.op for one in waiting} - {""}) < 2
    if is_same and count in (members, world):
        return words().says("joined", who=f"Each of the {count:,} ranks that take part")
    is_row = is_same and {p.rank for p in waiting if p.is_global} == {*range(count)}
    if is_row and not members and count > 1:
        return words().says("perhaps all", count=f"{count:,}")
    other = ": it waits for the other one" * (members == 2)
    size = f" By its sizes, {members:,} ranks take part{other}." if len(waiting) < members else ""
    size += _quiet_files(output)
    if len(positions) > 1:
        return f"No rank that printed is behind.{size}"
    there = " in that group" * bool(_ranks_of("position", output) - {positions[0].rank})
    return f"No other rank printed where it stands{there}.{size}"


def _quiet_files(output: JobOutput) -> str:
    """Files that say nothing about the wait, if others of their series, as of hosts, do."""
    told = {event.file for event in output.events if event.yields not in words().unsaid}
    series = {re.sub(r"\d", "", file) for file in told}
    quiet = [one for one in output.lines_of if one not in told and re.sub(r"\d", "", one) in series]
    return words().says("quiet", what=" and ".join(quiet)) if 0 < len(quiet) <= len(told) else ""


def _members(output: JobOutput) -> int:
    """The size of the only group whose operations show it by what goes in and out; 0 if unknown."""
    found = set()
    for event in output.events:
        op = event.fields.get("op", "").lstrip("_")
        least, most = sorted((event.number("numel_in") or 0, event.number("numel_out") or 0))
        if op.startswith(("ALLGATHER", "REDUCE_SCATTER")) and 0 < least < most:
            found.add(0 if most % least else most // least)
    return found.pop() if len(found) == 1 else 0


def as_it_began(output: JobOutput) -> str:
    """What the log said when the wait that a watchdog ended began; empty if unknown.

    Without dates, because loggers write them in many ways: a wait is shorter than a day.
    """
    event = next((e for e in output.events if e.number("ran_ms")), None)
    if event is None:
        return ""
    lines = output.ends.get(event.file, ())
    at = max(event.line - 1 - output.lines_of[event.file] + len(lines), 0)
    times = [words().search("moment", line) for line in lines]
    ended = next((second_of_day(time) for time in times[at:] if time), 0)
    began = ended - (event.number("ran_ms") or 0) // 1000
    near = (t for t in times[:at] if t and abs(second_of_day(t) - began) % DAY_S <= _AT_ONCE_S)
    said = [time[4] for time in near if time[4]]
    return words().says("began", said=said[-1][:_MAX_QUOTE]) if said and ended else ""


_AT_ONCE_S, DAY_S = 2, 24 * 3600


def took_longer(output: JobOutput, found: EndingResult) -> str:
    """The work of which the log says that it took longer than the timeout; empty without any."""
    limit = min((one.timeout_ms for one in found.positions if one.timeout_ms), default=0)
    took = [match for line in output.end_lines if (match := words().search("took", line))]
    longest = max(took, key=lambda match: float(match[1] or match[2]), default=None)
    if longest is None or not 0 < limit <= 1000 * float(longest[1] or longest[2]):
        return ""
    return words().says("longer", said=longest.string[: longest.end()].strip()[-_MAX_QUOTE:])


def second_of_day(time: re.Match[str]) -> int:
    """The time of day that a line begins with."""
    return 60 * (60 * int(time[1]) + int(time[2])) + int(time[3])


def _bar_moved(output: JobOutput) -> str:
    """How far a bar of progress went after the first time-out; empty if none moved."""
    first = next(e for e in output.events if e.yields in OF_WATCHDOGS)
    after = output.ends.get(first.file, ())[first.line - output.lines_of[first.file] - 1 :]
    bars = [bar for line in after if (bar := words().search("bar", line))]
    done = [int(bar["done"]) for bar in bars if bar["total"] == bars[-1]["total"]]
    if not done or done[0] >= done[-1]:
        return ""
    return f"from {done[0]:,} to {done[-1]:,} of {int(bars[-1]['total']):,}"


def _ranks_of(kind: str, output: JobOutput) -> set[int]:
    events = (e for e in output.events if e.yields == kind and e.name != "watchdog-cut")
    return {event.rank for event in events if event.rank is not None}


def _launched(one: EndingPosition) -> int | None:
    """The last collective that a rank is known to have launched."""
    return max((n for n in (one.enqueued, one.seq) if n is not None), default=None)


def _is_late(one: EndingPosition, positions: Sequence[EndingPosition], highest: int) -> bool:
    """Whether a rank did not launch an operation in which another waits, or waits in an earlier.

    It is late in any case if another rank has completed the operation in which it waits. Otherwise,
    if a rank printed what it had launched, that counts: it may time out in an early operation
    although it has launched later ones.
    """
    if one.seq is not None and any((p.completed or 0) >= one.seq for p in positions if p != one):
        return True
    if one.enqueued is not None:
        first = min(p.seq for p in positions if p.seq is not None)
        others = [p for p in positions if p is not one and p.seq is not None]
        return bool(others) and one.enqueued < max(first, min(p.seq or 0 for p in others))
    lowest = min((p.seq for p in positions if p.seq is not None), default=None)
    return one.seq is not None and one.seq < highest and one.seq == lowest


def _behind(
    name: str, late: Sequence[EndingPosition], positions: Sequence[EndingPosition]
) -> EndingResult:
    others = [one for one in positions if one not in late and one.seq is not None]
    ahead = min(others, key=lambda one: one.seq or 0)
    at = max(n for n in map(_launched, late) if n is not None)
    if is_ahead := at >= (ahead.seq or 0):
        at = max(one.seq for one in late if one.seq is not None)
    gap = (ahead.seq or 0) - at
    waits = [one for one in late if one.op or (is_ahead and one.seq is not None)]
    at_of = {one.rank: (one.seq if waits else _launched(one)) or 0 for one in waits or late}
    low, high = min(at_of.values()), max(at_of.values())
    stands, count = f"launched no collective after number {at:,}", counted(gap, "collective")
    if low < high:
        last = _who([one for one in late if at_of.get(one.rank) == low], name)
        stands = f"are at numbers {low:,} to {high:,}, {last} furthest behind"
        count = f"at least {count}"
    elif waits:
        stands = f"{verb(late, 'stand')} at {_operation(waits[0], name)}"
        if at != waits[0].seq:
            stands += f" and {'have' if len(late) > 1 else 'has'} launched up to number {at:,}"
    whose = f"{_who(others, name)}, which {verb(others, 'wait')} in {_operation(ahead, name)}"
    are, ranks = "They are" if len(late) > 1 else "It is", [p.rank for p in late if p.is_global]
    text = f"{_who(late, name)} {stands}. {are} {count} behind {whose}."
    why = "The ranks ran different numbers of collectives."
    return _stuck("behind", text, positions, ranks=tuple(ranks), why=(why,))


def _mismatch(waiting: Sequence[EndingPosition]) -> str | None:
    """What differs between ranks that wait in one number: ``op`` or ``size``; None if nothing."""
    if len(waiting) < 2 or all(map(_is_of_two, waiting)):
        return None
    if len({one.op for one in waiting}) > 1:
        return "op"
    sizes = {one.size for one in waiting if one.size}
    is_equal_by_nature = not waiting[0].op.lstrip("_").startswith(words().kinds["unequal"])
    return "size" if len(sizes) > 1 and is_equal_by_nature else None


def _unequal(name: str, what: str, waiting: Sequence[EndingPosition]) -> EndingResult:
    """Ranks that wait in the same number of collective, but not in the same collective."""
    (usual, most), *_ = Counter((one.op, one.size) for one in waiting).most_common(2)
    is_clear = most > len(waiting) - most
    odd = [one for one in waiting if (one.op, one.size) != usual] if is_clear else list(waiting)
    texts = []
    for key, some in grouped(((one.op, one.size), one) for one in waiting).items():
        size = f" of {counted(int(key[1]), 'element')}" if key[1].isdigit() else ""
        texts.append(f"{_who(some, name)} in {operation_kind(key[0])}{size}")
    told = "; ".join(texts[:4])
    if waiting[0].seq is None and what == "op":  # tensor and data parallelism print that, too
        return _stuck("unfinished", words().says("operations", what=told), waiting)
    number = "" if waiting[0].seq is None else f" as collective number {waiting[0].seq:,}"
    differ = "different operations" if what == "op" else "different sizes"
    text = f"ranks launched {differ}{number}{_of(name)}: {told}."
    return _stuck("mismatch", text, waiting, ranks=tuple(p.rank for p in odd if p.is_global))


def _silent(positions: Sequence[EndingPosition], output: JobOutput) -> tuple[int, ...]:
    """Ranks of a group that no line of a watchdog names."""
    if not all(one.is_global for one in positions):
        return ()
    told = (e.rank for e in output.events if e.yields in words().kinds["reports"])
    known = {*(one.rank for one in positions), *(rank for rank in told if rank is not None)}
    if positions[0].group:
        expected = _by_place(positions, output)
    else:
        expected, aborted = _of_world(positions, output), _ended_by(signal.SIGABRT, output)
        if aborted:  # by their watchdogs, but ranks that their launcher ended had not timed out
            expected |= _ended_by(signal.SIGTERM, output)
        known |= aborted
    silent = tuple(sorted(expected - known))
    return silent if len(silent) <= len(known) else ()


def _of_world(positions: Sequence[EndingPosition], output: JobOutput) -> set[int]:
    """The ranks of a job, as far as the output shows them."""
    named = {e.fields.get("group") for e in output.events if e.yields in OF_WATCHDOGS}
    members = _members(output) if DEFAULT_GROUPS[0] in named else 0
    waiting, said = {one.rank for one in positions}, _said_world(output)
    world = output.world_size or members or said * (said > max(waiting))
    written = " ".join(e.text for e in output.events if e.yields == "complaint")
    expected = {*output.ranks, *map(int, re.findall(r"(?i)\brank[ _]?(\d{1,6})\b", written))}
    expected |= {*range(world)} if world <= 1 << 20 else set()
    return expected if world else expected | set(range(_last_of(waiting) + 1))


def _last_of(numbers: set[int]) -> int:
    """The last of the numbers 0, 1, 2, … if few of them are missing; else -1."""
    holes = max(numbers) + 1 - len(numbers)
    return max(numbers) if len(numbers) > 2 and 3 * holes <= len(numbers) else -1


def _ended_by(number: signal.Signals, output: JobOutput) -> set[int]:
    """Ranks that a launcher reports to have ended by a signal."""
    exits = (e for e in output.events if e.yields == "exit" and e.number("code") == -number)
    return {event.rank for event in exits if event.rank is not None}


def _by_place(positions: Sequence[EndingPosition], output: JobOutput) -> set[int]:
    """The global ranks of a group whose members are evenly apart, such as those of a mesh axis."""
    group, ranks = positions[0].group, {one.rank for one in positions}
    own = [e for e in output.events if e.rank in ranks and "own" in e.fields]
    own = [e for e in own if (_group(e) or group) in group]  # or of a line that names none
    own = [e for e in own if e.fields.get("group") not in DEFAULT_GROUPS]
    places = {event.number("own") or 0: event.rank or 0 for event in own}
    if len(places) < len(ranks) or len(places) == 1:
        return set()
    (place, rank), (other, last) = min(places.items()), max(places.items())
    step = (last - rank) // (other - place)
    first = rank - step * place
    size = max(_members(output), _last_of({*places}) + 1)
    is_even = all(at == first + step * number for number, at in places.items())
    return {first + step * n for n in range(size)} if is_even and step > 0 <= first else set()


def _said_world(output: JobOutput) -> int:
    """The only number of GPUs that people write over what their job printed; 0 without one."""
    found = {2 if n.lower() == "two" else int(n) for line in output.end_lines
             for n in re.findall(words().patterns["gpus"], line)}  # fmt: skip
    return found.pop() if len(found) == 1 else 0


def _frozen(
    positions: Sequence[EndingPosition], output: JobOutput, told: set[int]
) -> EndingResult | None:
    """Watchdogs that fired although no collective was in flight."""
    idle = [one for one in positions if one.enqueued is not None and one.enqueued == one.completed]
    if not idle or len(idle) < len(positions):
        return None
    why = words().said["idle"]
    if told := told - {one.rank for one in idle}:
        why = words().says("idle, told", who=name_ranks(told))
    if any("local" in event.fields for event in output.events):
        why = words().said["idle, local"]
    who = _who(idle, idle[0].group)
    text = f"{who} had no collective in flight when a watchdog fired: {why}."
    return _stuck("idle", text, positions)


def _told(positions: Sequence[EndingPosition], told: set[int]) -> EndingResult | None:
    """Ranks that report the time-out of another, which does not report it itself."""
    if not (told and positions):
        return None
    others = f"{_who(positions, positions[0].group)} only {verb(positions, 'repeat')}"
    text = words().says("told", who=name_ranks(told), others=others)
    return _stuck("silent", text, positions, suspects=tuple(sorted(told)))


def _operation(one: EndingPosition, group: str) -> str:
    """For example ``all-reduce 96,117 of tp``."""
    number = "" if one.seq is None else f" {one.seq:,}"
    return f"{operation_kind(one.op)}{number}{_of(group)}"


def _of(group: str) -> str:
    """For example `` of tp``; a number needs a word."""
    return f" of {'process group ' if group.isdigit() else ''}{group}" if group else ""


def operation_kind(op: str) -> str:
    """The usual name of an operation: ``all-gather`` for ``_ALLGATHER_BASE``."""
    plain = op.upper().replace("_", "").removesuffix("BASE").removesuffix("COALESCED") or op
    return words().operations.get(plain, op.lower() if op else "collective")


def _who(positions: Sequence[EndingPosition], group: str) -> str:
    ranks = sorted({one.rank for one in positions})
    inside = "" if all(one.is_global for one in positions) else f" of group {group}"
    return f"{name_ranks(ranks)}{inside}"


def timeout_sentences(positions: Sequence[EndingPosition]) -> Iterator[str]:
    """How long ranks had waited."""
    waited = [one.waited_ms for one in positions if one.waited_ms is not None]
    limits = {one.timeout_ms for one in positions if one.timeout_ms is not None}
    if waited and limits:
        told = " or ".join(format_duration(ms * 1_000_000) for ms in sorted(limits)[:3])
        took = format_duration(max(waited) * 1_000_000)
        yield f"The longest wait took {took}, with a timeout of {told}."
    for one in [p for p in positions if p.enqueued is not None][:4]:
        done = "" if one.completed is None else f" and completed {one.completed:,}"
        done = " and completed none" if one.completed == -1 else done
        count = "none" if one.enqueued == -1 else f"{one.enqueued:,}"
        yield f"{capitalized(name_ranks([one.rank]))} had launched {count}{done}."
