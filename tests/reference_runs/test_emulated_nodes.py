"""Nodes on one machine: names, delay, rate, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link, why_not

from distprof.errors import UsageError

REASON = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}"),
]
DELAY_MS = 5.0
MBIT = 100.0

SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 7007))
print("listening", flush=True)
peer, _ = server.accept()
while True:
    head = peer.recv(1)
    if head in (b"", b"q"):
        break
    if head == b"p":
        peer.sendall(b"p")
    else:
        left = 4_000_000
        while left:
            left -= len(peer.recv(min(left, 65536)))
        peer.sendall(b"d")
"""
CLIENT = """
import json, socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 7007))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def exchange(what):
    begin = time.perf_counter()
    peer.sendall(what)
    peer.recv(1)
    return time.perf_counter() - begin
pings = [exchange(b"p") for _ in range(20)]
load = exchange(b"d" + bytes(4_000_000))
peer.sendall(b"q")
said = {"host": socket.gethostname(), "ping_s": statistics.median(pings), "load_s": load}
print(json.dumps(said))
"""


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


@pytest.fixture(scope="module", params=[DELAY_MS, 0.0], ids=["with a delay", "rate alone"])
def measured(request: pytest.FixtureRequest) -> Iterator[dict[str, float | str]]:
    link = Link(delay_ms=request.param, mbit_per_s=MBIT)
    with EmulatedNodes(2, link) as nodes:
        server = subprocess.Popen(
            nodes.command(1, [sys.executable, "-c", SERVER]), stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        said = subprocess.run(
            nodes.command(0, [sys.executable, "-c", CLIENT, nodes.host(1)]),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        server.communicate(timeout=10)
        yield {**json.loads(said.stdout), "delay_s": request.param / 1e3}


def test_a_node_has_its_own_name_and_knows_the_others(measured: dict[str, float | str]) -> None:
    assert measured["host"] == "node0"


def test_the_delay_is_there_both_ways(measured: dict[str, float | str]) -> None:
    ping, delay = float(measured["ping_s"]), float(measured["delay_s"])
    assert ping >= 2 * delay
    assert ping < 2 * delay + 0.02


def test_the_rate_is_not_exceeded(measured: dict[str, float | str]) -> None:
    at_rate = 4_000_000 * 8 / (MBIT * 1e6)
    assert float(measured["load_s"]) > 0.8 * at_rate  # a bucketful passes at once


def test_nothing_is_left_behind() -> None:
    before = namespaces()
    with EmulatedNodes(3, Link()):
        assert len(namespaces() - before) == 4  # three nodes and the switch
    assert namespaces() == before
    assert not [path for path in Path("/etc/netns").glob("distprof-*") if path.name not in before]


def test_too_many_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="choose 2 to 16 nodes"):
        EmulatedNodes(17, Link())
