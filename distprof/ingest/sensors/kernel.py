"""Lines of a kernel log: XID errors of GPUs, crashes of processes, and the OOM killer.

Supported formats are those of ``dmesg`` (with or without ``-T``) and ``journalctl -k`` (``-o
short``, ``short-precise``, ``short-full``, ``short-iso``, ``short-unix``, ``short-monotonic``,
``json``) and of syslog, also with the host name that ``pdsh`` and ``clush`` put before each line.

Source: NVIDIA, "XID Errors"; Linux, ``show_signal_msg`` (``arch/x86/mm/fault.c``), ``show_signal``
(``arch/x86/kernel/traps.c``, ``arch/arm64/kernel/traps.c``), ``__oom_kill_process``
(``mm/oom_kill.c``); systemd, ``systemd.journal-fields(7)`` and ``journalctl(1)``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from distprof.ingest.sensors.collect import LAST_NS, Collector, bus_id, seconds_of, time_of
from distprof.run.logs import Clock, DeviceEvent
from distprof.units import NS_PER_S

JOURNAL = '"__REALTIME_TIMESTAMP"'  # field in every entry of ``journalctl -o json``
_DRIVER = "NVRM: "
_XID = re.compile(r"NVRM: Xid \(([^)]{1,80})\): (\d{1,6})\b,?\s*(.{0,400})")
# Third line of a message without an XID, when the driver is loaded after the GPU was lost.
_LOST = re.compile(r"NVRM: +(fallen off the bus and is not responding to commands)")
_OFF_THE_BUS = 79
_XID_PROCESS = re.compile(r"pid='?(\d{1,10})'?, name=([^,]{1,40}), ?")
_XID_NO_PROCESS = re.compile(r"pid='?<unknown>'?, name=<unknown>, ?")
_GPU = re.compile(r"NVRM: GPU at (PCI:[0-9a-fA-F:.]{4,40}): (GPU-[0-9a-fA-F-]{8,40})")
_CRASH = re.compile(
    r"(?:traps: )?(?P<name>[^\s\[\]][^\[\]]{0,40})\[(?P<pid>\d{1,10})\]:? "
    r"(?P<text>(?:segfault at |unhandled exception: |general protection|trap ).{0,300})"
)
_KILLED = re.compile(
    r"(?P<text>(?:[A-Z][\w ]{0,40}: )?Killed process (?P<pid>\d{1,10}),? \((?P<name>.{1,40}?)\)"
    r".{0,300})"
)
_RESIDENT = re.compile(r"\b(?:anon|file|shmem)-rss:(\d{1,15})kB")
_LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}): +(?=\[|\d|[A-Z][a-z]{2} )")
_TASK = re.compile(r"(?:\d{1,7}|\[[\d,]{1,30}\]<\w{1,12}>): *")
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,80})"
_ISO = re.compile(
    r"\[?(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)"
    rf"\]?(?: +(?:{_HOST} +)?kernel(?:\[\d{{1,7}}\])?(?::| - - -))? *"
)
_DATED = re.compile(r"\[\d{4}-")
_DATE = re.compile(r"\d{4}[-/]\d\d[-/]\d\d")
# ``dmesg --time-format iso`` writes a comma, unlike other logs; ``--decode`` facility and level
_OF_DMESG = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d ")
_LEVEL = re.compile(r"[a-z]{3,8}\d? {0,8}:[a-z]{3,7} {0,8}: ")
_FULL = re.compile(
    r"[A-Z][a-z]{2} (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: UTC)?)(?: [A-Z]{1,5})? "
    rf"{_HOST} kernel: ?"
)
_UNIX = re.compile(rf"(?P<time>\d{{9,11}}\.\d{{1,9}}) {_HOST} kernel: ?")
_SYSLOG = re.compile(
    rf"(?P<time>[A-Z][a-z]{{2}} +\d{{1,2}} \d\d:\d\d:\d\d(?:\.\d{{1,9}})?) {_HOST} kernel: ?"
)
_CTIME = re.compile(r"\[([A-Z][a-z]{2}) ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\] ?")
_SECONDS = re.compile(rf"\[ *(\d{{1,10}}\.\d{{1,9}})\] ?(?:{_HOST} kernel: ?)?")
SNIFFED_LINES = 200
_LEAST_SHARE = 0.9
_LEAST_LINES = 3


class _Stamp(NamedTuple):
    """Prefix of a line before the kernel's message."""

    host: str = ""
    t_ns: int | None = None
    clock: Clock = "none"
    time: str = ""


def holds_marks(line: str) -> bool:
    """Whether a line may be one of those read here; a fast test for every line of any file."""
    return (
        _DRIVER in line
        or "]: segfault at " in line
        or "traps: " in line
        or "]: unhandled exception: " in line
        or "Killed process " in line
    )


def is_kernel_log(text: str) -> bool:
    """Whether the beginning of a file is a kernel log, with or without errors."""
    lines = [line for line in text.split("\n", SNIFFED_LINES)[:SNIFFED_LINES] if line.strip()]
    if lines and JOURNAL in lines[0]:
        return lines[0].startswith("{")
    fitting = sum(_is_of_kernel(line.rstrip("\r")) for line in lines)
    least = 1 if any(map(holds_marks, lines)) else _LEAST_LINES
    return fitting >= max(_LEAST_SHARE * len(lines), least)


def _is_of_kernel(line: str) -> bool:
    """Whether a line begins with the kernel's name or time; a date alone is not enough."""
    start = line[:200]
    before, bracket, _ = line[:90].partition("[")
    # other programs begin with a date, too, and have brackets later
    is_stamped = bool(bracket) and _DATED.match(line) is None and _DATE.search(before) is None
    is_named = " kernel:" in start or " kernel - " in start or is_stamped
    is_of_dmesg = _LEVEL.match(line) is not None or _OF_DMESG.match(line) is not None
    return (is_named or is_of_dmesg) and _split(line)[0] is not None


def take_kernel(line: str, collector: Collector) -> None:
    """Read a line of a kernel log that :func:`holds_marks`."""
    stamp, message = _split(line)
    if stamp is None and _DRIVER in line:
        stamp, message = _Stamp(), line[line.index(_DRIVER) :]
    _take(message, stamp or _Stamp(), collector)


def take_journal(line: str, collector: Collector) -> None:
    """Read an entry of ``journalctl -o json``; a damaged one is counted."""
    if not holds_marks(line):
        return
    try:
        entry: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        entry = None
    message = entry.get("MESSAGE") if isinstance(entry, dict) else None
    if not isinstance(message, str):
        collector.left_out["unreadable entries of the journal skipped"] += 1
        return
    if entry.get("SYSLOG_IDENTIFIER", "kernel") != "kernel":
        return  # from a program that writes about kernels
    host, micros = entry.get("_HOSTNAME"), entry.get("__REALTIME_TIMESTAMP")
    is_time = isinstance(micros, str) and micros.isdecimal() and len(micros) < 17
    t_ns = int(micros) * 1_000 if is_time and int(micros) * 1_000 < LAST_NS else None
    time = "" if t_ns is None else f"{datetime.fromtimestamp(t_ns // NS_PER_S, UTC):%FT%TZ}"
    named = host if isinstance(host, str) and re.fullmatch(_HOST, host) else ""
    _take(message, _Stamp(named, t_ns, "none" if t_ns is None else "epoch", time), collector)


def parsed_time(text: str, form: str) -> int | None:
    """A time without a zone in ns, as if it were UTC; None if it is invalid."""
    try:
        moment = datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None
    ns = int(moment.timestamp()) * NS_PER_S
    return ns if 0 <= ns < LAST_NS else None


def _take(message: str, stamp: _Stamp, collector: Collector) -> None:
    if _DRIVER in message:
        collector.is_kernel_log = True
        _take_driver(message, stamp, collector)
        return
    crash = _CRASH.match(message)
    killed = _KILLED.match(message) if crash is None else None
    found = crash or killed
    if found is None:
        return
    collector.is_kernel_log = True
    resident = sum(int(n) for n in _RESIDENT.findall(found["text"])) << 10
    event = DeviceEvent(
        file=collector.file,
        kind="crash" if killed is None else "oom",
        number=None,
        text=found["text"].strip(),
        process=found["name"].strip(),
        pid=int(found["pid"]),
        memory_bytes=resident or None,
        **stamp._asdict(),
    )
    collector.event(event)


def _take_driver(message: str, stamp: _Stamp, collector: Collector) -> None:
    """Read a line of NVIDIA's driver; without an XID, it may still give the UUID of a bus id."""
    named = _GPU.search(message)
    if named is not None and len(collector.uuids) < 100_000:
        collector.uuids[f"{stamp.host} {bus_id(named[1])}"] = named[2]
    found = _XID.search(message) or _LOST.search(message)
    if found is None:
        return
    event = DeviceEvent(
        file=collector.file, kind="xid", number=_OFF_THE_BUS, text=found[1], **stamp._asdict()
    )
    if found.re is _XID:
        where, text = bus_id(found[1]), found[3].strip()
        process = _XID_PROCESS.match(text)
        event = replace(
            event,
            number=int(found[2]),
            text=_XID_NO_PROCESS.sub("", text, 1) if process is None else text[process.end() :],
            bus_id=where,
            uuid=collector.uuids.get(f"{stamp.host} {where}", ""),
            process="" if process is None else process[2].strip(),
            pid=None if process is None else int(process[1]),
        )
    collector.event(event)


def _split(line: str) -> tuple[_Stamp | None, str]:
    """Prefix and kernel message of a line; the prefix is None if it has no known time."""
    task = _TASK.match(line)
    line = line if task is None else line[task.end() :]
    level = _LEVEL.match(line)
    line = line if level is None else line[level.end() :]
    label = _LABEL.match(line)
    rest = line if label is None else line[label.end() :]
    stamp, message = _stamped(rest)
    if stamp is not None and label is not None and not stamp.host:
        stamp = stamp._replace(host=label[1])
    inner = None if stamp is None else _SECONDS.match(message)
    return stamp, message if inner is None else message[inner.end() :]


def _stamped(line: str) -> tuple[_Stamp | None, str]:
    ctime = _CTIME.match(line)
    if ctime is not None:
        t_ns = parsed_time(f"{ctime[2]} {ctime[3]} {ctime[5]} {ctime[4]}", "%b %d %Y %H:%M:%S")
        time = ctime[0].strip("[] ")
        return _Stamp("", t_ns, "none" if t_ns is None else "local", time), line[ctime.end() :]
    seconds = _SECONDS.match(line)
    if seconds is not None:
        stamp = _Stamp(seconds["host"] or "", None, "none", f"{seconds[1]} s after boot")
        return stamp, line[seconds.end() :]
    for form, known in ((_SYSLOG, None), (_ISO, _zoned), (_FULL, _zoned), (_UNIX, seconds_of)):
        match = form.match(line)
        if match is not None:
            when = None if known is None else known(match["time"])
            t_ns, clock = when or (None, "none")
            return _Stamp(match["host"] or "", t_ns, clock, match["time"]), line[match.end() :]
    return None, line


def _zoned(text: str) -> tuple[int, Clock] | None:
    return time_of(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace(" UTC", "Z")))
