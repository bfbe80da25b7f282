"""Stacks in a job's output: faulthandler, py-spy, gdb and cuda-gdb, of Python and native code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from distprof.artefacts.records import FRAME, LIBRARY, main_stack

MAX_CALLS = 30
_MAX_TEXT = 300
_SPIED = re.compile(
    r"^ {2,8}(?P<name>[^\s(][^()\n]{0,200}) \((?P<file>[^()\n]{1,400}?)(?::(?P<line>\d+))?\)\s*$"
)
_IN_ONE_LINE = re.compile(r"[^\s()]{1,200} \([^()\s]{1,400}:\d{1,7}\)")
_DEBUGGED = re.compile(
    r'^\s+File "(?P<file>[^"\n]{1,400})", line (?P<line>\d+|\?\?\?),? in (?P<name>.{1,200})$'
)
_NATIVE = re.compile(
    r"^#\d{1,4}\s{1,4}(?:0x[0-9a-fA-F]{1,20} in )?(?P<name>[^\s(][^(\n]{0,300}?) ?\("
    r"(?:[^\n]{0,3000} (?:from|at) (?P<file>[^\s:]{1,400})(?::(?P<line>\d{1,7}))?\s*$)?"
)
_RECORDED = re.compile(r"^#\d{1,4} (?P<name>\S{1,200}) from (?P<file>\S{1,400}):(?P<line>\d+)$")
_FRAMED = re.compile(
    r"^#\d{1,4} Frame 0x[0-9a-f]{1,16}, for file (?P<file>[^\n,]{1,400}), line (?P<line>\d{1,7}), "
    r"in (?P<name>\S{1,200})"
)
_SHARED = re.compile(r"^Thread [^\n]{1,60}MainThread\"$")
"""A further process with the stack that follows."""

_BACKWARD = re.compile(r"^\s+\w*backward \(torch/autograd/")
_NATIVE_BORN = re.compile(
    r"^\s*Thread [^:\n]{1,80}\((?:idle|active)[^()\n]{0,20}\)(?:: \"pt_autograd\w*\")?$"
)
_PROCESS_HEAD = re.compile(r"^(?:Process \d|[^\n]{0,200}MainThread\")")

_ARROW = re.compile(r"\s{0,4}(?:-{1,2}>|→|=>|»| > )\s{0,4}")
"""Between the calls of a stack in one line, outermost first."""

_CHAINED = re.compile(
    r"(?:(?P<file>[^\s:()]{1,200}\.(?:py|pyx|cpp|cc|cu))[:/ ](?:(?P<line>\d{1,7})[: ])?)?"
    r"(?P<name>[\w.<>]{2,200})(?:\(\))?(?: ?[@(](?P<where>[^()]{1,200})\)?)?$"
)
"""A call of such a stack."""

_OUTERMOST = re.compile(r"(?:<module>|_?_?main(?:__|_loop)?|run|train|fit|launch) \(")
_SAME = re.compile(
    r"(?i)^(?:the )?(?:same|identical|ditto|like)\b(?:[^\n\d]{0,30}?(?:rank ?)?(\d{1,7}))?"
)

_LISTED = re.compile(
    r"^\s*(?P<name>[^\s(:][^()\n]{0,200}?) {1,40}\("
    r"(?P<file>[^()\s]{1,400}?\.(?:py|pyx|so[.\d]{0,9}|cpp|cc|cu))(?::(?P<line>\d{1,7}))?\)"
)
_OF_RANKS = re.compile(
    r"(?i)^[^\w\n]{0,12}(?:(?:local|global)[ _])?(?:worker_)?(?:ranks?|[TDP]P)[ _=#]?"
    r"(?![\d ]{1,9}[_ ][TDP]P\d)(?P<ranks>\d{1,7}(?: ?(?:,|-|–|and|&) ?\d{1,7}){0,64})(?![\d.])"
    r"(?: ?\([^()\n]{0,60}\))?[^\w\n]{0,9}(?P<rest>[^\n]*)"
)
"""What someone writes over, or before, a stack of one or more ranks."""

_NATIVE_THREAD = re.compile(r"^Thread (\d{1,7}) \((?:Thread|LWP|process) ")
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+ .{0,80}\(most recent call first\)")
_NAMED_RANK = re.compile(r"(?i)(?:local[_-])?\brank[ =:_-]{0,2}(\d{1,7})\b")
_TELLING = (
    ("distributed_c10d", re.compile(r"(?!wrapper|_)\w+$")),
    ("deepspeed/", re.compile(r"_?wait$|barrier$")),
    ("accelerate/", re.compile(r"wait_for_everyone$")),
    ("lightning", re.compile(r"barrier$")),
    ("torch/utils/data", re.compile(r"(?:__next__|_worker_loop|_shutdown_workers)$")),
    ("torch/autograd/__init__", re.compile(r"backward$")),
    ("torch/cuda", re.compile(r"synchronize$")),
    ("torch/utils/file_baton", re.compile(r"wait$")),
    ("torch/serialization", re.compile(r"(?:save|load)$")),
)
"""Calls inside libraries that show what a process waits for: part of the path, name."""

_WAITS = re.compile(
    r"(?i)^(?:p?nccl[a-z]|p?mpi_[a-z]|ompi_coll|hccl|rccl|ccl::|c10d::\S{0,200}(?:wait|synchronize|barrier|destroy|shutdown)|gloo::"
    r"\S{0,200}wait|(?:cu|cuda|hip)(?:(?:stream|device|event|ctx)synchronize|launchkernel)|cumulticast"
    r"|(?:cu|cuda|hip)(?:mem)?(?:host)?(?:free|alloc|malloc|register))"
)
"""Native calls that show what a process waits for."""

_RUNTIME = re.compile(
    r"^(?:\?\?$|0x|_*(?:Py|poll|epoll|select|futex|syscall|pthread|libc_|nanosleep|clock_|clone|start)"
    r"|pybind11::|std::|cfunction|method_|slot_|type_call|vectorcall|sched_yield|main$|THP)"
)
"""Native calls of every program: the interpreter, the C library."""

_LIBRARY = re.compile(
    rf"{LIBRARY.pattern}|\.so(?:\.\d+)*$|^\.{{1,2}}/(?:sysdeps|nptl)/|^(?:torch|threading|queue|multiprocessing|selectors|socket|asyncio|concurrent|io)(?:/|\.py$)"
    r"|^(?:deepspeed|accelerate|transformers|lightning|pytorch_lightning|tqdm)/"
)


def stacks_in(text: str) -> tuple[tuple[str, ...], int | None, int]:
    """The main thread's calls in a text that begins with a dump, the rank that it names, its lines.

    Calls are ``function (file:line)``, innermost first; none if the text is no dump.
    """
    lines = text.splitlines()
    first = lines[0] if lines else ""
    named = _NAMED_RANK.search(first)
    rank = int(named[1]) if named else None
    if _HEAD.match(first):
        dump = list(_dump(lines))
        return calls_of(main_stack(dump)), rank, len(dump)
    if _FRAMED.match(first):
        return calls_of([line for line in lines if _FRAMED.match(line)], _FRAMED), rank, len(lines)
    if first.startswith("#") or _NATIVE_THREAD.match(first):
        return _native(lines)
    own = [line for line in lines[1:] if line.strip()]
    own = own[next((i for i, line in enumerate(own) if not _SHARED.match(line)), 0) :]
    if own and _RECORDED.match(own[0]):
        frames = list(_leading(own, _RECORDED))
        return calls_of(frames, _RECORDED), rank, len(frames)
    pattern = _DEBUGGED if "most recent call first" in first else _SPIED
    own = [f"    {call}" for call in _IN_ONE_LINE.findall(first)] or own
    frames = list(_leading(own, pattern))
    hooks = _hooks(own[len(frames) :]) if any(map(_BACKWARD.match, frames)) else []
    return (*calls_of(hooks, pattern), *calls_of(frames, pattern)), rank, 1


def _hooks(lines: Sequence[str]) -> list[str]:
    """Frames of autograd's own thread, for which the main thread of the process waits."""
    for at, line in enumerate(lines):
        if _PROCESS_HEAD.match(line):
            break
        if _NATIVE_BORN.match(line) and (found := list(_leading(lines[at + 1 :], _SPIED))):
            return found
    return []


def listed_stacks(
    before: Sequence[str], lines: Sequence[str]
) -> tuple[list[tuple[tuple[int, ...], tuple[str, ...]]], int]:
    """Stacks that are listed, each under its ranks, and the number of lines that they take.

    Args:
        before: Lines before the one that was found, in which the list may begin.
        lines: That line and what follows.
    """
    found: list[tuple[tuple[int, ...], list[str]]] = []
    count = 0
    for at, line in enumerate([*before, *lines], 1 - len(before)):
        head = _OF_RANKS.match(line)
        if head:
            ends = re.findall(r"(\d+)(?: ?[-–] ?(\d+))?", head["ranks"])
            spans = (range(int(a), min(int(b or a), int(a) + 4096) + 1) for a, b in ends)
            found.append((tuple(chain(*spans)), []))
        frame = head["rest"] if head else line
        if found and (own := _chain(frame) or _same(frame, found)):
            found[-1][1].extend(own)
        elif found and _LISTED.match(frame):
            found[-1][1].append(frame)
        elif not head and line.strip(" `."):
            if at > 0:
                break
            found.clear()
        count = at
    stacks = (
        (ranks, calls_of(frames, _LISTED) if all(map(_LISTED.match, frames)) else tuple(frames))
        for ranks, frames in found
        if frames
    )
    return [(ranks, calls) for ranks, calls in stacks if calls], count


def _chain(text: str) -> list[str]:
    """Frames, innermost first, of a stack in one line such as ``main -> train -> all_reduce``."""
    calls = [_CHAINED.match(part) for part in _ARROW.split(text.strip(" `\"',.;"))[:MAX_CALLS]]
    if sum(one is not None for one in calls) < max(2, len(calls) - 1):
        return []
    frames = []
    for one in filter(None, calls):
        line = f":{one['line']}" if one["line"] else ""
        place = f"{one['file']}{line}" if one["file"] else one["where"] or "?"
        frames.append(f"{one['name'].rpartition('.')[2]} ({place})")
    is_outermost_last = _OUTERMOST.match(frames[-1]) and not _OUTERMOST.match(frames[0])
    return frames if is_outermost_last else frames[::-1]


def _same(text: str, found: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """The frames of the ranks whose stack a list does not repeat: ``same as rank 0``."""
    named = _SAME.search(text)
    if named is None:
        return []
    frames = (own for ranks, own in found[:-1] if not named[1] or int(named[1]) in ranks)
    return [*next(frames, [])]


def _native(lines: Sequence[str]) -> tuple[tuple[str, ...], None, int]:
    """The calls of the thread of a debugger's dump that shows what the process waits for."""
    threads: list[tuple[str, list[str]]] = []
    count = 0
    for count, line in enumerate([*lines, "end"]):  # noqa: B007 - the lines that were read
        head = _NATIVE_THREAD.match(line)
        if head or not threads:
            threads.append((head[1] if head else "1", []))
        if line.startswith("#"):
            threads[-1][1].append(line)
        elif threads[-1][1] and line.startswith(" "):
            threads[-1][1][-1] += f" {line.strip()}"
        elif line.strip() and not head:
            break
    found = [(calls_of(frames, _NATIVE), number) for number, frames in threads]
    found.sort(
        key=lambda one: (
            not any(re.match("(?i)cu\\w{0,12}(?:free|alloc)", call) for call in one[0]),
            not any(map(_WAITS.match, one[0])),
            one[1] != "1",
        )
    )
    return found[0][0], None, count


def _dump(lines: Sequence[str]) -> Iterator[str]:
    """The lines of one dump of the fault handler: threads and frames, up to any other line.

    A process has one current thread.
    """
    has_current = False
    for line in lines:
        is_current = line.startswith("Current thread")
        if (has_current and is_current) or (
            line.strip() and not (_HEAD.match(line) or FRAME.match(line))
        ):
            return
        has_current |= is_current
        yield line


def _leading(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Frames up to the first line that is none; py-bt prints the code below each frame."""
    for line in lines:
        if pattern.match(line):
            yield line
        elif pattern is not _DEBUGGED or not line.startswith("    "):
            return


def calls_of(frames: Sequence[str], pattern: re.Pattern[str] = FRAME) -> tuple[str, ...]:
    """Calls of frames, innermost first; calls inside libraries only if there are no others.

    Calls of torch that show what a rank waits for are kept, too.
    """
    calls: list[tuple[str, bool]] = []
    for line in frames[:MAX_CALLS]:
        match = pattern.match(line)
        if match and (match["line"] or not _RUNTIME.match(match["name"])):
            path = match["file"] or ""
            place = path.rpartition("/")[2] or "native"
            number = f":{match['line']}" if match["line"] else ""
            call = f"{match['name']} ({place}{number})"[:_MAX_TEXT]
            tells = any(part in path and how.match(match["name"]) for part, how in _TELLING)
            is_own = tells or _WAITS.match(call) or not _LIBRARY.search(path)
            calls.append((call, bool(is_own)))
    if not calls and frames and (match := pattern.match(frames[0])):
        calls = [(f"{match['name']} (native)"[:_MAX_TEXT], True)]
    has_own = any(is_own for _, is_own in calls)
    return tuple(call for call, is_own in calls if is_own or not has_own)


def calls_of_traceback(text: str) -> tuple[str, ...]:
    """The calls of a traceback, innermost first, as of a stack."""
    frames = [f" {line}" for line in text.splitlines() if _DEBUGGED.match(f" {line}")]
    return calls_of(frames[::-1], _DEBUGGED)


def last_own(text: str) -> str:
    """The innermost call of a traceback that is not in a library; empty if there is none."""
    own = [
        f"{found['name']} ({found['file'].rpartition('/')[2]}:{found['line']})"[:_MAX_TEXT]
        for line in text.splitlines()
        if (found := _DEBUGGED.match(f" {line}")) is not None and not _LIBRARY.search(found["file"])
    ]
    return own[-1] if own else ""
