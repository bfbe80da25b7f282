"""Follows a watcher on another machine, which serves its latest report as JSON (``board.py``)."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from distprof.errors import InputError, UsageError
from distprof.escape import plain, shorten
from distprof.verbs.addresses import direct_opener, is_web_address
from distprof.verbs.watch.follow import ENDED
from distprof.verbs.watch.result import Alert, WatchReport
from distprof.verbs.watch.show import WATCH

WITHIN_S: Final = 10.0
"""Timeout of one request, for client and server."""

MAX_BYTES: Final = 4 << 20
GIVE_UP_S: Final = 60.0
"""How long an endpoint that once answered may be silent."""

_EXPECTED = "a watcher started with `distprof watch DIR --listen PORT`"
_FIX = "check that the watcher runs, and that its port is reachable from this machine (ssh -L)"


def is_endpoint(source: str) -> bool:
    """Whether the source is the URL of a watcher; UsageError if it is another kind of URL."""
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
    """Poll a watcher: its report at each look, and the alerts that began or ended since the last.

    While the watcher does not answer, the last report has a note that says so. InputError if the
    first request fails, if none is answered for a minute, or if an answer is not a report.
    """
    opener, raised, answered_s = direct_opener(), dict[str, Alert](), time.monotonic()
    report = _fetch(opener, url)
    while True:
        alerts = list(_changes(raised, report))
        raised = {alert.kind: alert for alert in report.alerts}
        yield report, alerts
        if report.state in ENDED:
            return
        sleep(period_s)
        try:
            report = _fetch(opener, url)
            answered_s = time.monotonic()
        except InputError as error:
            silent_s = time.monotonic() - answered_s
            if silent_s > GIVE_UP_S:
                raise
            report = _with_note(report, f"No answer for {silent_s:.0f} s: {error.found}.")


def _changes(before: Mapping[str, Alert], report: WatchReport) -> Iterator[Alert]:
    """Alerts that began, and alerts that ended."""
    now = {alert.kind: alert for alert in report.alerts}
    for kind, alert in now.items():
        if kind not in before or set(alert.ranks) - set(before[kind].ranks):
            yield alert
    for kind, alert in before.items():
        ranks = sorted(set(alert.ranks) - set(now[kind].ranks if kind in now else ()))
        if ranks or kind not in now:
            yield alert.cleared(ranks, step=report.step, time_ns=report.time_ns)


def _with_note(report: WatchReport, note: str) -> WatchReport:
    kept = tuple(each for each in report.notes if not each.startswith("No answer for "))
    return msgspec.structs.replace(report, notes=(*kept, note))


def _fetch(opener: urllib.request.OpenerDirector, url: str) -> WatchReport:
    """The latest report."""
    try:
        with opener.open(url, timeout=WITHIN_S) as answer:
            data = _body(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise _no_report(url, f"the server answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        text = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise _no_report(url, shorten(plain(str(text)), 160)) from error
    if not data:
        raise _no_report(url, "no report yet")
    return WATCH.decode(data, url)


def _body(answer: Any) -> bytes:
    """The whole body; ValueError if it is too long, or takes too long."""
    until_s, parts, size = time.monotonic() + WITHIN_S, [], 0
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        if time.monotonic() > until_s:
            raise ValueError(f"an answer that takes more than {WITHIN_S:g} s")
    return b"".join(parts)


def _no_report(url: str, found: str) -> InputError:
    return InputError(url, expected=_EXPECTED, found=found, fix=_FIX)
