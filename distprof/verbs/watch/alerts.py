"""Kinds of alerts with their levels, and which are raised: conditions that began or ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import re
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from distprof.bounds import table_beside
from distprof.errors import UsageError
from distprof.escape import plain, shorten
from distprof.verbs.sources import is_web_address
from distprof.verbs.watch import ON, WINDOW
from distprof.verbs.watch.show import ALERT, Alert, sentence_on
from distprof.version import __version__

Unit = Literal["ratio", "times", "bytes", "none"]
_BYTES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
LASTING = f"{ON} of {WINDOW} steps"
_EXAMPLE: Mapping[Unit, str] = {"ratio": "10%", "times": "20x", "bytes": "64GB", "none": ""}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of alert."""

    name: str  # For example ``slow-rank``.
    unit: Unit  # Unit of its level.
    about: str  # When it is raised, one sentence.
    # Default level; None if the kind is watched for only with an explicit level.
    level: float | None = None


KINDS: Mapping[str, Kind] = {
    row["name"]: Kind(**{**row, "about": row["about"].format(lasting=LASTING)})
    for row in table_beside(__package__, "alerts.toml")["kind"]
}


def default_levels() -> dict[str, float]:
    """The default level of each kind that has one."""
    return {kind.name: kind.level for kind in KINDS.values() if kind.level is not None}


def parse_alerts(texts: Iterable[str]) -> dict[str, float]:
    """Kinds and levels, from texts such as ``slow-rank=10%,rank-lost``."""
    pieces = (piece.strip() for text in texts for piece in text.split(","))
    return dict(_parsed(piece) for piece in pieces if piece)


def _parsed(piece: str) -> tuple[str, float]:
    name, has_level, text = piece.partition("=")
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"--alert: unknown alert {name[:60]!r}: choose from {', '.join(KINDS)}")
    if has_level:
        return name, _level(kind, text)
    if kind.level is None:
        raise UsageError(f"--alert {name}: add a level, for example {name}={_EXAMPLE[kind.unit]}")
    return name, kind.level


def _level(kind: Kind, text: str) -> float:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(%|x|[kMGT]?B)?", text.strip())
    value, unit = (float(match[1]), match[2] or "") if match else (0.0, "")
    readings: Mapping[Unit, float | None] = {
        "ratio": value / 100 if unit == "%" else value if not unit else None,
        "times": value if unit in ("x", "") else None,
        "bytes": value * _BYTES[unit] if unit in _BYTES else None,
        "none": None,
    }
    level = readings[kind.unit]
    if level is None or level <= 0 or (kind.unit == "ratio" and level > 10):
        expected = f"a level such as {_EXAMPLE[kind.unit]}" if kind.unit != "none" else "no level"
        raise UsageError(f"--alert {kind.name}: {text[:40]!r} cannot be read: expected {expected}")
    return level


JOB = -1
"""Stands for a rank in conditions that concern the whole job."""


class Condition(msgspec.Struct, frozen=True):
    """Current state of one kind of alert."""

    on: frozenset[int]  # Ranks, or ``JOB``, for which the condition holds.
    words: str  # The message without its subject.
    of_rank: Mapping[int, str] = {}  # Message of each rank, if messages differ between ranks.


class Alarms:
    """Keeps the raised alerts, so each is delivered once when it begins and once when it ends."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._raised: dict[str, frozenset[int]] = {}
        self._began: dict[str, Alert] = {}

    def observe(
        self, conditions: Mapping[str, Condition], *, step: int | None, now_ns: int
    ) -> list[Alert]:
        """Compare current conditions with the previous ones: an alert for each kind and change."""
        alerts: list[Alert] = []
        for kind, now in conditions.items():
            before = self._raised.get(kind, frozenset())
            began, ended = now.on - before, before - now.on
            if began:
                alerts.append(self._alert(kind, began, now, step, now_ns))
            if ended:
                over = _ranks(ended)
                alerts.append(self._began[kind].cleared(over, step=step, time_ns=now_ns))
            self._raised[kind] = now.on
            if now.on:
                self._began[kind] = self._alert(kind, now.on, now, step, now_ns)
        return alerts

    def raised(self) -> tuple[Alert, ...]:
        """Alerts that are raised now, one of each kind."""
        return tuple(self._began[kind] for kind, on in self._raised.items() if on)

    def _alert(
        self, kind: str, on: Collection[int], now: Condition, step: int | None, now_ns: int
    ) -> Alert:
        ranks = _ranks(on)
        return Alert(
            distprof_version=__version__,
            state="raised",
            kind=kind,
            # That of the first rank, if messages differ
            message=sentence_on(ranks, now.of_rank.get(min(on), now.words)),
            ranks=ranks,
            step=step,
            time_ns=now_ns,
            source=self._source,
        )


def _ranks(on: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in on if rank != JOB))


WITHIN_S: Final = 10.0
ATTEMPTS: Final = 3
PAUSE_S: Final = 1.0
MAX_QUEUED: Final = 64
CLOSE_WITHIN_S: Final = 15.0


class Receiver(Protocol):
    """A destination for alerts."""

    def send(self, body: bytes) -> str:
        """Deliver one alert as JSON and return why that failed, or an empty string."""
        ...


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **keywords: Any) -> None:  # noqa: ARG002
        return None


class Webhook:
    """An ``http`` or ``https`` address that takes alerts as JSON, by POST."""

    def __init__(self, address: str) -> None:
        if not is_web_address(address):
            raise UsageError(
                f"--webhook {address[:80]!r}: expected an address such as https://host/path"
            )
        self._address = address
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, body: bytes) -> str:
        """Post it."""
        headers = {"Content-Type": "application/json", "User-Agent": f"distprof/{__version__}"}
        request = urllib.request.Request(self._address, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=WITHIN_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return shorten(plain(str(error)) or type(error).__name__, 160)


class Command:
    """A program, started without a shell, that takes an alert on its standard input, as JSON."""

    def __init__(self, line: str) -> None:
        try:
            self._arguments: Sequence[str] = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"--exec {line[:80]!r}: {error}") from error
        if not self._arguments:
            raise UsageError("--exec: the command is empty")

    def send(self, body: bytes) -> str:
        """Run it."""
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"the command cannot be started: {getattr(error, 'strerror', None) or error}"
        try:
            process.communicate(body, timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                process.kill()
            process.wait()
            return f"the command did not finish within {WITHIN_S:g} s and was killed"
        return f"the command exited with code {process.returncode}" if process.returncode else ""


class Courier:
    """Delivers alerts in order, in the background; ``warn`` gets a sentence about each failure."""

    def __init__(
        self,
        receivers: dict[str, Receiver],
        warn: Callable[[str], None],
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.num_lost = 0
        self._receivers = receivers
        self._warn = warn
        self._pause_s = pause_s
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="distprof-alerts", daemon=True)
        if receivers:
            self._thread.start()

    def send(self, alert: Alert) -> None:
        """Queue an alert for delivery without waiting."""
        if not self._receivers:
            return
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._lose(f"{alert.kind}: {MAX_QUEUED} alerts are already queued")

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Deliver the queued alerts and stop; give up after ``within_s`` seconds."""
        if not self._receivers:
            return
        deadline = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._lose(f"the queue was not empty after {within_s:g} s")

    def _run(self) -> None:
        while (alert := self._waiting.get()) is not None:
            body = ALERT.encode(alert)
            for name, receiver in self._receivers.items():
                problem = self._deliver(receiver, body)
                if problem:
                    self._lose(f"{alert.kind} to {name}: {problem}")

    def _deliver(self, receiver: Receiver, body: bytes) -> str:
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self._pause_s * 2 ** (attempt - 1))
            problem = receiver.send(body)
            if not problem:
                return ""
        return problem

    def _lose(self, why: str) -> None:
        self.num_lost += 1
        self._warn(f"An alert was not delivered: {why}.")
