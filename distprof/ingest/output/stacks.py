"""Stacks in a job's output: of faulthandler, py-spy, gdb, cuda-gdb and Linux."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from distprof.artefacts.records import FRAME, LIBRARY, main_stack
from distprof.bounds import patterns_beside, table_beside

MAX_CALLS = 30
_MAX_TEXT = 300
_FEWEST_FRAMES = 2  # of a stack without a head
_Listed = tuple[tuple[int | None, ...], tuple[str, ...]]  # ranks and their calls
_HOW = patterns_beside(__package__, "stacks.toml", LIBRARY=LIBRARY.pattern)


def _tells(path: str, name: str) -> bool:
    """Whether a function of a library tells what a rank waits for."""
    telling = table_beside(__package__, "stacks.toml")["telling"]
    return any(part in path and re.match(how, name) for part, how in telling.items())


def stacks_in(text: str, *, is_crash: bool = False) -> tuple[tuple[str, ...], int | None, int]:
    """The main thread's calls in a text that begins with a dump, the rank that it names, its lines.

    Of a crash, the thread that crashed counts. Calls are ``function (file:line)``, innermost
    first; none if the text is no dump.
    """
    lines = text.splitlines()
    first = lines[0] if lines else ""
    named = _HOW["named_rank"].search(first)
    rank = int(named[1]) if named else None
    if _HOW["head"].match(first):
        dump = list(_dump(lines))
        at = next((i for i, x in enumerate(dump) if x.startswith("Current") and is_crash), None)
        main = main_stack(dump) if at is None else [*_leading(dump[at + 1 :], FRAME)]
        if is_crash and at is None and not last_own("\n".join(main)):
            main = []  # a native thread crashed: what a library's thread does says nothing
        return calls_of(main), rank, len(dump)
    if _HOW["framed"].match(first):
        own = [line for line in lines if _HOW["framed"].match(line)]
        return calls_of(own, _HOW["framed"]), rank, len(lines)
    if _HOW["outermost_first"].match(first):
        threads = "\n".join(_leading(lines, _HOW["in_process"])).split("\nTraceback for ")
        mains = [at for at, one in enumerate(threads) if not _HOW["started"].search(one)]
        own = threads[mains[0] if mains else 0].splitlines()[::-1]
        own = [line for line in own if _HOW["outermost_first"].match(line)]
        dump = "\n".join(threads[: mains[1]] if mains[1:] else threads).splitlines()
        return calls_of(own, _HOW["outermost_first"]), rank, len(dump)
    if _HOW["kernel"].match(first):
        names = [line.split()[1].partition("+")[0] for line in _leading(lines, _HOW["kernel"])]
        return tuple(f"{name} (kernel)" for name in names), rank, len(names)
    if _HOW["on_gpu"].match(first):
        session = [*_leading(lines, _HOW["in_cuda_gdb"])]  # of one process
        rows = map(_HOW["on_gpu"].match, session)
        kernels = dict.fromkeys(f"{one[1]} (on the GPU)" for one in rows if one)
        return (*kernels,), rank, len(session)
    if _HOW["threads"].match(first):
        listed = "\n".join(_leading(lines[1:], _HOW["in_threads"]))
        return _native(_HOW["in_threads"].sub(r"Thread \1 (LWP \1):\n#0  ", listed).splitlines())
    if _HOW["lldb_thread"].match(first) or _HOW["lldb"].match(first):
        text = _HOW["lldb_thread"].sub(r"Thread \1 (LWP \1):", text)
        lines = _HOW["lldb"].sub(r"\1  \2 in \4 () from \3", text).splitlines()
        first = lines[0]
    if first.startswith("#") or _HOW["native_thread"].match(first):
        return _native(lines)
    own = [line for line in lines[1:] if line.strip()]
    own = own[next((i for i, line in enumerate(own) if not _HOW["shared"].match(line)), 0) :]
    if own and _HOW["recorded"].match(own[0]):
        frames = list(_leading(own, _HOW["recorded"]))
        return calls_of(frames, _HOW["recorded"]), rank, len(frames)
    for_gil = ("take_gil (native)",) * any("Waiting for the GIL" in line for line in lines[:2])
    pattern = _HOW["debugged" if for_gil or "most recent call first" in first else "spied"]
    own = [f"    {call}" for call in _HOW["in_one_line"].findall(first)] or own
    count = 1 + len([*_leading(lines[1:], _HOW["in_dump"])])
    frames = list(_leading(own, pattern))
    if "MainThread" not in first and all(map(_HOW["helps"].match, frames)):
        return (), rank, count  # a thread that only helps
    head = "native_born" if any(map(_HOW["backward"].match, frames)) else "born"
    is_handed = head == "native_born" or any(map(_HOW["handed"].match, frames[:3]))
    hooks = _hooks(own[len(frames) :], head) if is_handed else []
    return (*for_gil, *calls_of(hooks, pattern), *calls_of(frames, pattern)), rank, count


def _hooks(lines: Sequence[str], head: str) -> list[str]:
    """Frames of the thread for which the main thread of the process waits, as of autograd's own."""
    for at, line in enumerate(lines):
        if _HOW["process_head"].match(line):
            break
        found = [*_leading(lines[at + 1 :], _HOW["spied"])] if _HOW[head].match(line) else []
        if found and (head == "native_born" or not all(map(_HOW["helps"].match, found))):
            return found
    return []


def headed(text: str) -> int | None:
    """The rank that a heading names at the end of a text; None without one."""
    for line in reversed(text.splitlines()):
        if found := _HOW["heading"].match(line):
            return int(found[1])
        if not _HOW["between"].match(line):
            return None
    return None


def listed_stacks(before: Sequence[str], lines: Sequence[str]) -> tuple[list[_Listed], int]:
    """Stacks that are listed, each under its ranks, and the number of lines that they take.

    The list may begin in the lines before the one that was found, with which ``lines`` begin.
    """
    found: list[tuple[tuple[int, ...], list[str]]] = []
    count = 0
    for at, line in enumerate([*before, *lines], 1 - len(before)):
        head = _HOW["of_ranks"].match(line)
        if head:
            ends = re.findall(r"(\d+)(?: ?[-–] ?(\d+))?", head["ranks"])
            spans = (range(int(a), min(int(b or a), int(a) + 4096) + 1) for a, b in ends)
            found.append((tuple(chain(*spans)), []))
        frame = head["rest"] if head else line
        if found and (own := _chain(frame) or _same(frame, found)):
            found[-1][1].extend(own)
        elif found and _HOW["listed"].match(frame):
            found[-1][1].append(frame)
        elif not head and line.strip(" `."):
            if at > 0:
                break
            found.clear()
        count = at
    stacks: list[_Listed] = []
    for ranks, frames in found:
        is_listed = all(map(_HOW["listed"].match, frames))
        stacks.append((ranks, calls_of(frames, _HOW["listed"]) if is_listed else tuple(frames)))
    stacks = [(ranks, calls) for ranks, calls in stacks if calls]
    return (stacks, count) if stacks else _headless(before, lines)


def _headless(before: Sequence[str], lines: Sequence[str]) -> tuple[list[_Listed], int]:
    """A stack whose frames were copied without the line of their thread, and its lines."""
    above = list(_leading(before[::-1], _HOW["spied"]))
    own = list(_leading(lines, _HOW["spied"]))
    head = before[-len(above) - 1] if len(above) < len(before) else ""
    if len(above) + len(own) < _FEWEST_FRAMES or _HOW["of_thread"].match(head):
        return [], 0  # other threads tell nothing of what a rank waits for
    return [((None,), calls_of([*above[::-1], *own], _HOW["spied"]))], len(own)


def _chain(text: str) -> list[str]:
    """Frames, innermost first, of a stack in one line such as ``main -> train -> all_reduce``."""
    calls = [
        _HOW["chained"].match(part)
        for part in _HOW["arrow"].split(text.strip(" `\"',.;"))[:MAX_CALLS]
    ]
    if sum(one is not None for one in calls) < max(2, len(calls) - 1):
        return []
    frames = []
    for one in filter(None, calls):
        line = f":{one['line']}" if one["line"] else ""
        place = f"{one['file']}{line}" if one["file"] else one["where"] or "?"
        frames.append(f"{one['name'].rpartition('.')[2]} ({place})")
    first, last = (_HOW["outermost"].match(frames[at]) for at in (0, -1))
    return frames if last and not first else frames[::-1]


def _same(text: str, found: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """The frames of the ranks whose stack a list does not repeat: ``same as rank 0``."""
    named = _HOW["same"].search(text)
    if named is None:
        return []
    frames = (own for ranks, own in found[:-1] if not named[1] or int(named[1]) in ranks)
    return [*next(frames, [])]


def _native(lines: Sequence[str]) -> tuple[tuple[str, ...], None, int]:
    """The calls of the thread of a debugger's dump that shows what the process waits for."""
    threads: list[tuple[str, list[str]]] = []
    count = 0
    for count, line in enumerate([*lines, "end"]):  # noqa: B007 - the lines that were read
        head = _HOW["native_thread"].match(line)
        if head or not threads:
            threads.append((head[1] if head else "1", []))
        if line.startswith("#"):
            threads[-1][1].append(line)
        elif threads[-1][1] and line.startswith(" "):
            threads[-1][1][-1] += f" {line.strip()}"
        elif line.strip() and not head:
            break
    found = [(calls_of(frames, _HOW["native"]), number) for number, frames in threads]
    found.sort(
        key=lambda one: (
            not any(re.match("(?i)cu\\w{0,12}(?:free|alloc)", call) for call in one[0]),
            not any(map(_HOW["waits"].match, one[0])),
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
        is_other = line.strip() and not (_HOW["head"].match(line) or FRAME.match(line))
        if is_other or (has_current and is_current):
            return
        has_current |= is_current
        yield line


def _leading(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Frames up to the first line that is none; py-bt prints code below each, others values."""
    below = _HOW["code" if pattern is _HOW["debugged"] else "values"]
    for line in lines:
        if pattern.match(line):
            yield line
        elif not below.match(line):
            return


def calls_of(frames: Sequence[str], pattern: re.Pattern[str] = FRAME) -> tuple[str, ...]:
    """Calls of frames, innermost first; calls inside libraries only if there are no others.

    Calls of torch that show what a rank waits for are kept, too.
    """
    calls: list[tuple[str, bool]] = []
    for line in frames[:MAX_CALLS]:
        match = pattern.match(line)
        if match and (match["line"] or not _HOW["runtime"].match(match["name"])):
            path = (match["file"] or "").replace("\\", "/")
            number = f":{match['line']}" if match["line"] else ""
            file = path.rpartition("/")[2]
            is_cut = pattern is _HOW["native"] and "." not in file
            place = "native" if is_cut or not file else file
            call = f"{match['name']} ({place}{number})"[:_MAX_TEXT]
            waits = _HOW["waits"].match(call) or (not calls and _HOW["locks"].match(call))
            tells = bool(waits) or _tells(path, match["name"])
            calls.append((call, tells or not _HOW["library"].search(path)))
    if not calls and (found := [*filter(None, map(pattern.match, frames[:MAX_CALLS]))]):
        told = (one for one in found if not _HOW["c_library"].search(one["file"] or ""))
        match = next(told, found[0])
        where = (match["file"] or "native").rpartition("/")[2]
        calls = [(f"{match['name']} ({where})"[:_MAX_TEXT], True)]
    has_own = any(is_own for _, is_own in calls)
    return tuple(call for call, is_own in calls if is_own or not has_own)


def calls_of_traceback(text: str) -> tuple[str, ...]:
    """The calls of a traceback, innermost first, as of a stack.

    Where own code is the innermost, the call in its line counts, too: a text may be cut after it.
    """
    frames, code = list[str](), ""
    for line in text.splitlines():
        if _HOW["debugged"].match(f" {line}"):
            frames, code = [f" {line}", *frames], ""
        code = code or (line if frames and not _HOW["debugged"].match(f" {line}") else "")
    calls = calls_of(frames, _HOW["debugged"])
    is_loop = code.lstrip().startswith("while ")  # each call of its condition returns
    own, called = last_own(text), [] if is_loop else _HOW["called"].findall(code)
    path = frames[0].split('"')[1] if frames else ""
    if tells := next((name for name in called if _tells(path, name)), ""):
        return (f"{tells} ({path.rpartition('/')[2]})", *calls)
    if len(called) != 1 or not calls or calls[0] != own or own != last_own(frames[0]):
        return calls
    name = "__next__" if called[0] in ("next", "enumerate") else called[0]
    return (f"{name} {own[own.rfind('(') :]}", *calls)


def last_own(text: str) -> str:
    """The innermost call of a traceback that is not in a library; empty if there is none."""
    own = [
        f"{found['name']} ({found['base']}:{found['line']})"[:_MAX_TEXT]
        for line in text.splitlines()
        if (found := _HOW["debugged"].match(f" {line}")) is not None
        and not _HOW["library"].search(found["file"])
    ]
    return own[-1] if own else ""


def end_of(frames: str) -> str:
    """The end of a traceback; before it the last frame of the program itself, if it has none."""
    end = frames[-4 * _MAX_TEXT :]
    own = [] if last_own(end) else [*filter(last_own, frames.split("\n"))]
    return "\n".join((*own[-1:], end))
