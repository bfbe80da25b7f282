"""A watcher that others ask: what they see, and what happens when it does not answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from distprof.cli import main
from distprof.errors import InputError, UsageError
from distprof.verbs.watch import board as board_module
from distprof.verbs.watch import endpoint
from distprof.verbs.watch.alerts import alert_kinds
from distprof.verbs.watch.board import Board
from distprof.verbs.watch.endpoint import follow_endpoint, is_endpoint
from distprof.verbs.watch.result import Alert, WatchReport
from tests.job_folders import JobFolder
from tests.verbs.watch.samples import ended, running

change = msgspec.structs.replace


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board("127.0.0.1", 0)
    yield made
    made.close()


def looks(
    url: str, sleep: Callable[[float], None] = lambda _: None
) -> Iterator[tuple[WatchReport, list[Alert]]]:
    return follow_endpoint(url, period_s=1, sleep=sleep)


@contextmanager
def answering(write: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that is no watcher."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            write(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def ok(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(body)


def why(url: str) -> str:
    with pytest.raises(InputError) as caught:
        next(looks(url))
    return str(caught.value)


# What is seen -------------------------------------------------------------------------------------


def test_the_latest_report_is_seen_whole(board: Board) -> None:
    board.show(change(running(), step=1))
    board.show(running())
    assert next(looks(board.address))[0] == running()


def test_following_ends_with_the_job(board: Board) -> None:
    board.show(running())
    found = looks(board.address, lambda _: board.show(ended()))
    assert [report.state for report, _ in found] == [running().state, ended().state]


def test_it_listens_on_ipv6_too() -> None:
    try:
        made = Board("::1", 0)
    except InputError:
        pytest.skip("this machine has no IPv6")
    made.show(running())
    assert next(looks(made.address))[0].world_size == running().world_size
    made.close()


def test_what_listens_is_loopback_and_never_cached(board: Board) -> None:
    board.show(running())
    assert board.address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{board.address}/any/path", timeout=10) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert json.load(answer)["schema"] == "distprof.watch/1"


# Alerts -------------------------------------------------------------------------------------------


def alert(kind: str, *ranks: int) -> Alert:
    return Alert(
        distprof_version="1", state="raised", kind=kind, message="…", ranks=ranks, time_ns=1,
        source="runs/mine",
    )  # fmt: skip


def test_alerts_are_told_once_when_they_begin_and_when_they_end(board: Board) -> None:
    states = [
        (),
        (alert("slow-rank", 1),),
        (change(alert("slow-rank", 1), time_ns=5),),
        (alert("slow-rank", 1, 2), alert("slow-job")),
        (alert("slow-rank", 2),),
        (),
    ]
    reports = iter([change(running(), alerts=alerts) for alerts in states])
    board.show(next(reports))
    told: list[list[str]] = []
    for _, alerts in looks(board.address, lambda _: board.show(next(reports))):
        told.append([f"{each.state} {each.kind} {each.ranks}" for each in alerts])
        if len(told) == len(states):
            break
    assert told == [
        [],
        ["raised slow-rank (1,)"],
        [],
        ["raised slow-rank (1, 2)", "raised slow-job ()"],
        ["cleared slow-rank (1,)", "cleared slow-job ()"],
        ["cleared slow-rank (2,)"],
    ]


def test_levels_belong_to_the_watcher_that_measures() -> None:
    assert alert_kinds(["slow-rank, memory", "stalled"]) == ["slow-rank", "memory", "stalled"]
    with pytest.raises(UsageError, match="levels are set by the watcher"):
        alert_kinds(["slow-rank=5%"])
    with pytest.raises(UsageError, match="unknown alert 'slow'"):
        alert_kinds(["slow"])


# No answer, or a wrong one ------------------------------------------------------------------------


def test_a_watcher_that_goes_away_leaves_its_last_report_for_a_minute(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 10_000, 25))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)))  # not the other threads' too
    monkeypatch.setattr(endpoint, "time", clock)
    monkeypatch.setattr(endpoint, "_body", lambda answer: answer.read())
    other = Board("127.0.0.1", 0)
    other.show(running())
    seen: list[WatchReport] = []
    found = looks(other.address, lambda _: other.close() if len(seen) == 1 else None)

    def look_on() -> None:
        for report, _ in found:
            seen.append(report)

    with pytest.raises(InputError, match="refused"):
        look_on()
    notes = [report.notes[-1] for report in seen[1:]]
    assert notes == [
        "No answer for 25 s: Connection refused.",
        "No answer for 50 s: Connection refused.",
    ]
    assert all(change(report, notes=running().notes) == running() for report in seen)


def test_nobody_there_is_said_with_the_way_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        said = why(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert "distprof watch DIR --listen PORT" in said
    assert "refused" in said
    assert "ssh -L" in said


def test_before_the_first_look_there_is_no_report(board: Board) -> None:
    assert "no report yet" in why(board.address)


def test_another_server_is_told_by_what_it_sends() -> None:
    with answering(lambda visitor: ok(visitor, b"# HELP distprof_steps_total Steps")) as url:
        assert "a watched job" in why(url)
    with answering(lambda visitor: ok(visitor, b'{"schema": "distprof.report/2"}')) as url:
        assert "distprof.watch/1" in why(url)
    with answering(lambda visitor: visitor.send_error(403)) as url:
        assert "the server answered 403" in why(url)


def test_no_redirect_is_followed(board: Board) -> None:
    board.show(running())

    def elsewhere(visitor: BaseHTTPRequestHandler) -> None:
        visitor.send_response(302)
        visitor.send_header("Location", board.address)
        visitor.end_headers()

    with answering(elsewhere) as url:
        assert "the server answered 302" in why(url)


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BYTES", 100_000)

    def endless(visitor: BaseHTTPRequestHandler) -> None:
        try:
            ok(visitor, b"")
            while True:
                visitor.wfile.write(b" " * 10_000)
        except OSError:
            return

    with answering(endless) as url:
        assert "more than 100,000 bytes" in why(url)


def test_an_answer_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WITHIN_S", 0.5)

    def slow(visitor: BaseHTTPRequestHandler) -> None:
        try:
            ok(visitor, b"")
            while True:
                visitor.wfile.write(b" ")
                time.sleep(0.1)
        except OSError:
            return

    with answering(slow) as url:
        assert "takes more than 0.5 s" in why(url)


def test_visitors_that_say_nothing_shut_nobody_out_for_long(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module._Answer, "timeout", 0.5)
    board.show(running())
    address = board.address.removeprefix("http://").split(":")
    silent = [
        socket.create_connection((address[0], int(address[1])))
        for _ in range(board_module.MAX_CLIENTS + 8)
    ]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            assert next(looks(board.address))[0] == running()
            break
        except InputError:
            time.sleep(0.1)
    else:
        pytest.fail("visitors that say nothing hold their places")
    for each in silent:
        each.close()


@pytest.mark.parametrize("text", ["ftp://host/x", "http://", "http://host:99999", "s3://b/run"])
def test_an_address_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither a folder nor an address"):
        is_endpoint(text)


def test_folders_are_no_endpoints() -> None:
    assert not is_endpoint("runs/mine")
    assert is_endpoint("http://localhost:9465")


# By the command line ------------------------------------------------------------------------------


def test_a_job_is_watched_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """One process reads the run directory, this one asks it."""
    job = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2}, outcome="running")
    for rank in range(2):
        job.steps(rank, [10] * 30)
    job.write()
    command = [sys.executable, "-m", "distprof", "watch", str(job.path), "--listen", "0"]
    near = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        url = near.stderr.readline().split()[-1]
        for _ in range(100):
            if main(["watch", url, "--once", "--alert", "rank-lost"]) == 0:
                break
            time.sleep(0.1)
        page = capsys.readouterr().out
        assert "step 29" in page
        assert str(job.path) in page
    finally:
        near.terminate()
        near.communicate(timeout=60)


@pytest.mark.parametrize("more", [("--listen", "0", "--once"), ("--listen", "0")])
def test_listening_needs_a_run_directory_and_time(
    more: tuple[str, ...], board: Board, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source = str(tmp_path) if "--once" in more else board.address
    assert main(["watch", source, *more]) == 2
    assert "--listen needs" in capsys.readouterr().err
