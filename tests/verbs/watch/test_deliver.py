"""Delivery: once where it works, bounded where it does not, and never in the way of watching."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from distprof.errors import UsageError
from distprof.verbs.watch import alerts
from distprof.verbs.watch.alerts import (
    ATTEMPTS,
    Command,
    Courier,
    Webhook,
    default_levels,
    parse_alerts,
)
from distprof.verbs.watch.show import ALERT, Alert


def alert(kind: str = "slow-rank") -> Alert:
    return Alert(
        distprof_version="1", state="raised", kind=kind, message="Rank 3: a\x1b[2Jb", ranks=(3,),
        step=7, time_ns=1, source="runs/mine",
    )  # fmt: skip


class Hook(BaseHTTPRequestHandler):
    """Answers as its server is told to, and keeps what it got."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
        code = self.server.codes.pop(0) if self.server.codes else 204
        if code == 0:
            self.server.is_released.wait(30)
            return
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://169.254.169.254/")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.got.append(("redirected", "", {}))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.codes, server.is_released = [], [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.is_released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def sent(receiver, *alerts: Alert, within_s: float = 20) -> tuple[Courier, list[str]]:
    said: list[str] = []
    courier = Courier({"it": receiver}, said.append, pause_s=0.01)
    for each in alerts:
        courier.send(each)
    courier.close(within_s)
    return courier, said


def address(hook: HTTPServer) -> str:
    return f"http://127.0.0.1:{hook.server_port}/hook?key=1"


def test_a_webhook_gets_each_alert_once_as_json(hook) -> None:
    courier, said = sent(Webhook(address(hook)), alert(), alert("rank-lost"))
    assert (courier.num_lost, said) == (0, [])
    assert [kind["kind"] for _, _, kind in hook.got] == ["slow-rank", "rank-lost"]
    path, media, body = hook.got[0]
    assert (path, media) == ("/hook?key=1", "application/json")
    assert body == json.loads(ALERT.encode(alert()))


def test_a_webhook_that_fails_is_asked_again(hook) -> None:
    hook.codes += [500, 503]
    courier, said = sent(Webhook(address(hook)), alert())
    assert (courier.num_lost, said, len(hook.got)) == (0, [], 3)


def test_a_webhook_that_keeps_failing_is_given_up(hook) -> None:
    hook.codes += [500] * ATTEMPTS
    courier, said = sent(Webhook(address(hook)), alert())
    assert courier.num_lost == 1
    assert said == ["An alert was not delivered: slow-rank to it: the server answered 500."]
    assert len(hook.got) == ATTEMPTS


def test_no_redirect_is_followed(hook) -> None:
    hook.codes += [302] * ATTEMPTS
    _, said = sent(Webhook(address(hook)), alert())
    assert said == ["An alert was not delivered: slow-rank to it: the server answered 302."]
    assert "redirected" not in [path for path, _, _ in hook.got]


def test_a_server_that_is_not_there_costs_a_sentence() -> None:
    _, said = sent(Webhook("http://127.0.0.1:9/hook"), alert())
    assert len(said) == 1
    assert "refused" in said[0]


def test_a_server_that_never_answers_is_not_waited_for(
    hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "WITHIN_S", 0.2)
    hook.codes += [0] * ATTEMPTS
    began = time.monotonic()
    courier = Courier({"it": Webhook(address(hook))}, lambda _: None, pause_s=0.01)
    for _ in range(alerts.MAX_QUEUED + 10):
        courier.send(alert())
    assert time.monotonic() - began < 5
    assert courier.num_lost >= 9
    courier.close(0.1)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "text", ["", "ftp://host/x", "file:///etc/passwd", "http://", "http://h:x/", "http://a b/", "x"]
)
def test_an_address_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError, match="expected an address"):
        Webhook(text)


def test_a_command_gets_the_alert_on_its_input_and_no_shell(tmp_path: Path) -> None:
    program = tmp_path / "take.py"
    program.write_text("import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())")
    out = tmp_path / "got $(id); x"
    courier, said = sent(Command(f"'{sys.executable}' '{program}' '{out}'"), alert())
    assert (courier.num_lost, said) == (0, [])
    assert json.loads(out.read_bytes())["message"] == "Rank 3: a\x1b[2Jb"
    assert b"\x1b" not in out.read_bytes()


def test_a_command_that_fails_or_cannot_start_is_said() -> None:
    _, said = sent(Command(f"'{sys.executable}' -c 'raise SystemExit(3)'"), alert())
    assert said == ["An alert was not delivered: slow-rank to it: the command exited with code 3."]
    _, said = sent(Command("/no/such/program"), alert())
    assert "cannot be started: No such file" in said[0]


def test_a_command_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "WITHIN_S", 0.5)
    monkeypatch.setattr(alerts, "ATTEMPTS", 1)
    _, said = sent(Command("sh -c 'sleep 60 & wait'"), alert())
    assert said == [
        "An alert was not delivered: slow-rank to it: the command did not finish within 0.5 s and "
        "was killed."
    ]


@pytest.mark.parametrize("text", ["", "  ", "'open"])
def test_a_command_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError):
        Command(text)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("slow-rank", {"slow-rank": 0.10}),
        ("slow-rank=5%,rank-lost", {"slow-rank": 0.05, "rank-lost": 0.0}),
        ("slow-rank=0.05", {"slow-rank": 0.05}),
        ("memory=64GB", {"memory": 64e9}),
        ("stalled=50x, stalled=40", {"stalled": 40.0}),
        ("", {}),
    ],
)
def test_alerts_are_read(text: str, levels: dict[str, float]) -> None:
    assert parse_alerts([text]) == levels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow", "unknown alert 'slow': choose from slow-rank"),
        ("memory", "add a level, for example memory=64GB"),
        ("memory=5%", "'5%' cannot be read: expected a level such as 64GB"),
        ("slow-rank=0%", "cannot be read"),
        ("slow-rank=10x", "expected a level such as 10%"),
        ("slow-rank=", "cannot be read"),
        ("rank-lost=3", "expected no level"),
        ("input=1e5%", "cannot be read"),
    ],
)
def test_alerts_that_cannot_be_read_say_what_can(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parse_alerts([text])


def test_each_kind_but_memory_has_a_level_by_default() -> None:
    assert set(default_levels()) == {
        *("slow-rank", "slow-job", "rank-lost", "stalled", "input", "throttling")
    }
