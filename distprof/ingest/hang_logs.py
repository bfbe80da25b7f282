"""What logs beside the dumps tell of trouble: a simple scan for lines that are known to matter.

The whole of an NCCL log is another reader's business; here only the lines are wanted that a person
would search for first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distprof.ingest.job.files import Folder
from distprof.run.hang_evidence import LogLine

__all__ = ["LogFile", "calls_of_stacks", "scan_log"]

MAX_LINES = 50
MAX_TEXT = 300
MAX_HEAD_BYTES = 1 << 22
MAX_TAIL_BYTES = 1 << 24
MAX_CALLS = 30

_PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (about, re.compile(pattern))
    for about, pattern in (
        (
            "timeout",
            rb"(?i)watchdog caught|collective operation timeout|WorkNCCL\(SeqNum|Timed out waiting"
            rb"|heartbeat monitor timed out|watchdog got stuck",
        ),
        (
            "device",
            rb"\bXid\b|NVRM:|uncorrectable ECC|ECC error|CUDA error|cudaError[A-Z]|fell off the bus"
            rb"|HIP error|GPU hang|unspecified launch failure",
        ),
        (
            "peer",
            rb"(?i)connection (?:closed by peer|reset by peer|refused)|ncclRemoteError"
            rb"|remote process exited|peer may have crashed|socketProgress",
        ),
        (
            "nccl",
            rb"NCCL WARN|ncclSystemError|ncclInternalError|ncclUnhandledCudaError"
            rb"|Got completion from peer|IBV_WC_|NET/\w+.{0,40}(?:error|fail)",
        ),
        (
            "error",
            rb"out of memory|OutOfMemoryError|oom[-_]kill|Killed process|Segmentation fault"
            rb"|Fatal Python error|^\w*(?:Error|Exception): ",
        ),
    )
)
_ANY = re.compile(
    rb"(?i)watchdog|timed? ?out|nccl ?(?:warn|[a-z]*error)|cuda ?error|hip error|\bxid\b|nvrm"
    rb"|\becc\b"
    rb"|connection|exited|crashed|completion|net/|memory|oom|fault|fatal|(?:error|exception): "
    rb"|fell off|gpu hang|launch failure|killed|socketprogress|ibv_wc|WorkNCCL"
)
_RANK = re.compile(rb"\[?\b[Rr]ank[ :=]?(\d{1,7})\]?")
_NOISE = re.compile(rb"NCCL INFO|NCCL TRACE|DEBUG")
_STACK_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen")
_STACK_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log to be scanned. Picklable, so that another process can read it.

    Args:
        folder: Where it is.
        name: Its name there.
        shown: What to call it.
        rank: Whose it is, None when its place does not tell.
    """

    folder: Folder
    name: str
    shown: str
    rank: int | None


def scan_log(log: LogFile) -> tuple[LogLine, ...]:
    """Lines that tell of trouble, alike ones once; of a large file its beginning and its end.

    Returns:
        The first lines found, in order; none where the file cannot be read.
    """
    found: list[LogLine] = []
    seen: set[tuple[str, bytes]] = set()
    for number, line in _lines(log):
        about = _about(line)
        key = (about, re.sub(rb"\d+", b"0", line[:200]))
        if not about or key in seen:
            continue
        seen.add(key)
        text = line.strip().decode("utf-8", "replace")[:MAX_TEXT]
        found.append(
            LogLine(rank=_rank(line, log.rank), file=log.shown, line=number, about=about, text=text)
        )
        if len(found) == MAX_LINES:
            break
    return tuple(found)


def _lines(log: LogFile) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; those between head and tail of a large file are left out."""
    size = log.folder.size(log.name) or 0
    number = 0
    try:
        with log.folder.open(log.name) as stream:
            while line := stream.readline(1 << 16):
                number += 1
                if _ANY.search(line):
                    yield number, line
                at = stream.tell()
                if MAX_HEAD_BYTES < at < size - MAX_TAIL_BYTES:
                    stream.seek(size - MAX_TAIL_BYTES)
                    stream.readline(1 << 16)
    except OSError:
        return


def _about(line: bytes) -> str:
    if _NOISE.search(line):
        return ""
    return next((about for about, pattern in _PATTERNS if pattern.search(line)), "")


def _rank(line: bytes, rank: int | None) -> int | None:
    if rank is not None:
        return rank
    match = _RANK.search(line)
    return int(match[1]) if match else None


def calls_of_stacks(text: str) -> tuple[str, ...]:
    """The training thread's calls in a dump of Python's fault handler, innermost first.

    Python prints the main thread last; threads without Python code are left out. Calls inside
    libraries are left out where there are others.
    """
    threads: list[list[tuple[str, bool]]] = []
    for line in text.splitlines():
        if _STACK_THREAD.match(line):
            threads.append([])
        elif threads and (match := _STACK_FRAME.match(line)) and len(threads[-1]) < MAX_CALLS:
            path = match["file"]
            call = f"{match['name']} ({path.rpartition('/')[2]}:{match['line']})"[:MAX_TEXT]
            threads[-1].append((call, _LIBRARY.search(path) is None))
    calls = next((calls for calls in reversed(threads) if calls), [])
    has_own = any(is_own for _, is_own in calls)
    return tuple(call for call, is_own in calls if is_own or not has_own)
