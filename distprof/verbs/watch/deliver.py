"""Delivers alerts to a webhook or a command on a separate thread, so watching never waits.

The number of attempts, their duration and the queue are bounded. Alerts that cannot be delivered
are counted and reported.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from distprof.errors import UsageError
from distprof.escape import plain, shorten
from distprof.verbs.addresses import direct_opener, is_web_address
from distprof.verbs.watch.result import Alert
from distprof.verbs.watch.show import ALERT
from distprof.version import __version__

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


class Webhook:
    """An ``http`` or ``https`` address that takes alerts as JSON, by POST."""

    def __init__(self, address: str) -> None:
        if not is_web_address(address):
            raise UsageError(
                f"--webhook {address[:80]!r}: expected an address such as https://host/path"
            )
        self._address = address
        self._opener = direct_opener()

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
    """A program that takes an alert on its standard input, as JSON.

    The line is quoted as for a shell, but no shell is involved.
    """

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
            _kill(process)
            return f"the command did not finish within {WITHIN_S:g} s and was killed"
        return f"the command exited with code {process.returncode}" if process.returncode else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and its child processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
    process.wait()


class Courier:
    """Delivers alerts in order, in the background.

    ``warn`` gets a sentence about each alert that was not delivered. The pause before the second
    attempt is doubled before each further one.
    """

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
