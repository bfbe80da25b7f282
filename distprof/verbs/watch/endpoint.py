"""What one watcher sees, for others that cannot read the run directory: served, and followed.

A watcher next to the job serves its latest report as JSON; another one shows the same page
elsewhere. Neither reaches the training: the first reads files, the second asks the first.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from distprof.errors import InputError, UsageError
from distprof.escape import plain, shorten
from distprof.units import capitalized, name_ranks
from distprof.verbs.addresses import cannot_listen, direct_opener, is_web_address
from distprof.verbs.watch.follow import ENDED
from distprof.verbs.watch.result import Alert, WatchReport
from distprof.verbs.watch.show import WATCH

__all__ = ["Board", "follow_endpoint", "is_endpoint"]

WITHIN_S: Final = 10.0
"""For one question and its answer, on both sides."""

MOST_BYTES: Final = 4 << 20
MOST_VISITORS: Final = 32
GIVEN_UP_S: Final = 60.0
"""How long an endpoint that once answered may be silent."""

_EXPECTED = "what `distprof watch DIR --listen PORT` serves"
_FIX = "check that it runs there, and that the port can be reached from here (ssh -L)"


# Serving ------------------------------------------------------------------------------------------


class Board:
    """Serves the latest report at every path, in threads of this process, until it is closed.

    Args:
        host: Address to listen on.
        port: Port; 0 for one that is free.

    Raises:
        InputError: If nothing can listen there.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _Answer)
        except (OSError, OverflowError) as error:
            raise cannot_listen(host, port, error) from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port, as a URL."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def show(self, report: WatchReport) -> None:
        """From now on, this is the latest."""
        self._server.body = WATCH.encode(report)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Has a bounded number of visitors; more are sent away without a thread."""

    daemon_threads = True
    block_on_close = False
    body = b""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)
        self._seats = threading.BoundedSemaphore(MOST_VISITORS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._seats.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._seats.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that leaves early is no concern of ours."""


class _Answer(BaseHTTPRequestHandler):
    timeout = WITHIN_S
    server: _Server
    server_version = "distprof"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(self.server.body)

    def do_HEAD(self) -> None:
        self._answer(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """The page is on this terminal."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


# Following ----------------------------------------------------------------------------------------


def is_endpoint(source: str) -> bool:
    """Whether a watcher is named, by its URL.

    Raises:
        UsageError: If it is a URL of another kind.
    """
    if "://" not in source:
        return False
    if not is_web_address(source):
        raise UsageError(
            f"{source[:80]!r} is neither a folder nor an address such as http://host:9465"
        )
    return True


def follow_endpoint(
    url: str, *, period_s: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[tuple[WatchReport, list[Alert]]]:
    """Ask a watcher again and again.

    Args:
        url: Its address.
        period_s: Seconds between two questions.
        sleep: Waits; takes seconds.

    Yields:
        The job at each look, and the alerts that began or ended since the last; while the watcher
        does not answer, the last report with a note on that.

    Raises:
        InputError: If it does not answer at first, or for a minute, or with something else.
    """
    opener, raised, heard_s = direct_opener(), dict[str, Alert](), time.monotonic()
    report = _asked(opener, url)
    while True:
        alerts = list(_changes(raised, report))
        raised = {alert.kind: alert for alert in report.alerts}
        yield report, alerts
        if report.state in ENDED:
            return
        sleep(period_s)
        try:
            report = _asked(opener, url)
            heard_s = time.monotonic()
        except InputError as error:
            silent_s = time.monotonic() - heard_s
            if silent_s > GIVEN_UP_S:
                raise
            report = _with_note(report, f"No answer for {silent_s:.0f} s: {error.found}.")


def _changes(before: Mapping[str, Alert], report: WatchReport) -> Iterator[Alert]:
    """Alerts that are new, and those that are over."""
    now = {alert.kind: alert for alert in report.alerts}
    for kind, alert in now.items():
        if kind not in before or set(alert.ranks) - set(before[kind].ranks):
            yield alert
    for kind, alert in before.items():
        ranks = sorted(set(alert.ranks) - set(now[kind].ranks if kind in now else ()))
        if ranks or kind not in now:
            who = capitalized(name_ranks(ranks)) if ranks else "The job"
            yield msgspec.structs.replace(
                alert,
                state="cleared",
                ranks=tuple(ranks),
                message=f"{who}: no longer: {kind}",
                time_ns=report.time_ns,
            )


def _with_note(report: WatchReport, note: str) -> WatchReport:
    kept = tuple(each for each in report.notes if not each.startswith("No answer for "))
    return msgspec.structs.replace(report, notes=(*kept, note))


def _asked(opener: urllib.request.OpenerDirector, url: str) -> WatchReport:
    """The latest report.

    Raises:
        InputError: If there is no answer in time, or it is something else.
    """
    try:
        with opener.open(url, timeout=WITHIN_S) as answer:
            data = _body(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise _no_report(url, f"the server answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        said = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise _no_report(url, shorten(plain(str(said)), 160)) from error
    if not data:
        raise _no_report(url, "no report yet")
    return WATCH.decode(data, url)


def _body(answer: Any) -> bytes:
    """All of it, unless it is too long or takes too long.

    Raises:
        ValueError: If it is.
    """
    until_s, parts, size = time.monotonic() + WITHIN_S, [], 0
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        if time.monotonic() > until_s:
            raise ValueError(f"an answer that takes more than {WITHIN_S:g} s")
    return b"".join(parts)


def _no_report(url: str, found: str) -> InputError:
    return InputError(url, expected=_EXPECTED, found=found, fix=_FIX)
