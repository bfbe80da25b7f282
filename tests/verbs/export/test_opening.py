"""The file that is handed to the page of Perfetto: to whom, under which name, how often."""

from __future__ import annotations

import json
import socket
import struct
import threading
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from distprof.verbs.export import PAGE, address_of, serve


@pytest.fixture
def served(tmp_path: Path):
    """Port, path and the thread that serves."""
    file = tmp_path / "my job #1.pftrace"
    file.write_bytes(b"trace" * 4_000_000)
    told: Queue[str] = Queue()
    thread = threading.Thread(target=serve, args=(file, told.put), kwargs={"port": 0}, daemon=True)
    thread.start()
    query = parse_qs(told.get(timeout=10).partition("?")[2])
    url = urlsplit(query["url"][0])
    yield int(url.port), file, thread
    if thread.is_alive():
        fetch(int(url.port), "/my%20job%20%231.pftrace")
        thread.join(10)


def fetch(port: int, path: str, method: str = "GET", **headers: str):
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_gets_the_file_once(served) -> None:
    port, file, thread = served
    answer, body = fetch(port, "/my%20job%20%231.pftrace", Origin=PAGE)
    assert answer.status == 200
    assert body == file.read_bytes()
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("path", ["/", "/other", "/../my%20job%20%231.pftrace", "//etc/passwd"])
def test_nothing_else_is_served(served, path: str) -> None:
    port, _, thread = served
    answer, body = fetch(port, path)
    assert answer.status == 404
    assert b"tracetrace" not in body
    assert thread.is_alive()


def test_a_foreign_name_of_this_machine_gets_nothing(served) -> None:
    port, _, thread = served
    answer, _ = fetch(port, "/my%20job%20%231.pftrace", Host=f"evil.example:{port}")
    assert answer.status == 404
    assert thread.is_alive()


def test_who_goes_away_in_the_middle_may_come_back(served, capfd) -> None:
    port, file, thread = served
    with socket.create_connection(("127.0.0.1", port)) as connection:
        linger = struct.pack("ii", 1, 0)  # a reset, so that the rest cannot be sent
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        name = "/my%20job%20%231.pftrace"
        connection.sendall(f"GET {name} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        connection.recv(1)
    if thread.is_alive():  # what was sent may have fit into the buffers
        assert fetch(port, name)[1] == file.read_bytes()
    assert "Traceback" not in capfd.readouterr().err


def test_a_browser_that_asks_first_may_fetch(served) -> None:
    port, _, _ = served
    answer, _ = fetch(port, "/x", "OPTIONS", Origin=PAGE)
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE


def test_the_address_unfolds_our_tracks() -> None:
    query = parse_qs(address_of(Path("x/a b.pftrace"), 9001).partition("?")[2])
    assert unquote(query["url"][0]) == "http://127.0.0.1:9001/a b.pftrace"
    (command,) = json.loads(query["startupCommands"][0])
    assert command["id"] == "dev.perfetto.ExpandTracksByRegex"
    assert "distprof" in command["args"][0]
