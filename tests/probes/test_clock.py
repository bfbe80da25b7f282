"""Clock stamps: right by the formula, off the training thread, harmless without an answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.clock import ClockProbe
from distprof_probes.probes.clock_exchange import Exchange, TimeServer, ask, best, connect
from distprof_probes.probes.clock_threads import Answerer, Asker, own_addresses
from distprof_probes.records import RecordWriter
from distprof_probes.session import Session
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link, why_not
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.records import ClockStamp, Header
from distprof.artefacts.run_file import ProbeStatus
from tests.warm import WarmPython

OPTIONS = ProbeOptions(measure_overhead=False)
ROOT = Path(__file__).resolve().parents[2]
TOKEN = bytes(range(16))
MS = 1_000_000


class Shelf:
    """A store as ranks share it; ``get`` of what is not there would wait, so it fails the test."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


@pytest.fixture
def server() -> Iterator[TimeServer]:
    server = TimeServer(TOKEN, "127.0.0.1")
    server.start()
    yield server
    server.end()
    assert not server.is_alive()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RecordWriter]:
    header = Header(schema="distprof.clock/1", rank=1)
    writer = RecordWriter(tmp_path / "clock.jsonl", header, background=False)
    yield writer
    writer.close()


def _until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, not for time to pass."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def _stamps(file: Path) -> list[ClockStamp]:
    _, *lines = file.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=ClockStamp) for line in lines]


def _connected(port: int) -> socket.socket:
    asker = connect("127.0.0.1", port)
    assert asker is not None
    return asker


def test_offset_and_delay_are_those_of_rfc_5905() -> None:
    """The server is 100 ms ahead; 2 ms there, 3 ms at the server, 4 ms back: off by (2 - 4) / 2."""
    exchange = Exchange(sent_ns=0, arrived_ns=102 * MS, answered_ns=105 * MS, received_ns=9 * MS)
    assert exchange.offset_ns == 99 * MS
    assert exchange.delay_ns == 6 * MS


@given(
    offset=st.integers(-(10**18), 10**18),
    there=st.integers(0, 10**9),
    at_server=st.integers(0, 10**9),
    back=st.integers(0, 10**9),
)
def test_the_true_offset_is_within_half_the_delay(
    offset: int, there: int, at_server: int, back: int
) -> None:
    exchange = Exchange(
        sent_ns=0,
        arrived_ns=there + offset,
        answered_ns=there + at_server + offset,
        received_ns=there + at_server + back,
    )
    assert exchange.delay_ns == there + back
    assert abs(exchange.offset_ns - offset) <= exchange.delay_ns / 2 + 1


def test_one_clock_is_not_ahead_of_itself(server: TimeServer) -> None:
    with _connected(server.port) as asker:
        exchanges = ask(asker, TOKEN, times=20)
    assert len(exchanges) == 20
    for exchange in exchanges:
        assert exchange.delay_ns > 0
        assert abs(exchange.offset_ns) <= exchange.delay_ns / 2 + 1
        assert exchange.sent_ns <= exchange.arrived_ns <= exchange.answered_ns
        assert exchange.answered_ns <= exchange.received_ns


def test_a_server_kept_busy_by_its_interpreter_is_right_all_the_same(server: TimeServer) -> None:
    """Arrival is stamped by the kernel: what the answer waits for is no part of the delay."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            sum(range(2000))

    thread = threading.Thread(target=spin)
    thread.start()
    with _connected(server.port) as asker:
        exchanges = ask(asker, TOKEN, times=16, timeout_s=2.0)
    ended.set()
    thread.join()
    chosen = best(exchanges, 4)
    assert len(chosen) == 4
    assert all(abs(exchange.offset_ns) <= exchange.delay_ns / 2 + 1 for exchange in chosen)


def test_whoever_does_not_know_the_token_gets_no_answer(server: TimeServer) -> None:
    with _connected(server.port) as asker:
        assert ask(asker, bytes(16), times=3, timeout_s=0.05) == []
        assert len(ask(asker, TOKEN, times=1)) == 1


def test_broken_questions_are_ignored(server: TimeServer) -> None:
    with _connected(server.port) as asker:
        for junk in (b"", b"x", TOKEN, bytes(200)):
            asker.send(junk)
        assert len(ask(asker, TOKEN, times=1)) == 1


def test_a_late_answer_is_not_taken_for_the_next_one(server: TimeServer) -> None:
    with _connected(server.port) as asker:
        assert ask(asker, TOKEN, times=1, timeout_s=0.0) == []  # its answer comes too late
        (exchange,) = ask(asker, TOKEN, times=1)
    assert exchange.arrived_ns >= exchange.sent_ns


def test_nobody_listening_ends_the_asking() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with _connected(port) as asker:
        assert ask(asker, TOKEN, times=16, timeout_s=0.2) == []


def test_a_name_that_means_nothing_is_no_way() -> None:
    assert connect("no-such-host.invalid", 9) is None


def test_the_best_are_the_quickest_in_order_of_time() -> None:
    def exchange(sent_ns: int, delay_ns: int) -> Exchange:
        return Exchange(
            sent_ns=sent_ns, arrived_ns=0, answered_ns=0, received_ns=sent_ns + delay_ns
        )

    asked = [exchange(1, 50), exchange(2, 10), exchange(3, 40), exchange(4, 20)]
    assert best(asked, 2) == [asked[1], asked[3]]
    assert best(asked, 9) == asked


def test_ranks_find_each_other_through_the_store(tmp_path: Path, writer: RecordWriter) -> None:
    shelf = Shelf()
    asker = Asker(shelf, "key", {"MASTER_ADDR": "no-such-host.invalid"}, writer)
    asker.start()  # before rank 0 is there
    answerer = Answerer(shelf, "key", TOKEN, {}, one_host=True)
    answerer.start()
    _until(lambda: asker.is_connected)
    asker.end(within_s=5.0)
    answerer.end()
    writer.close()
    stamps = _stamps(tmp_path / "clock.jsonl")
    assert len(stamps) == 8  # the best four of the first set, and of the last
    assert asker.trouble == ""
    for stamp in stamps:
        middle = (stamp.t_sent_ns + stamp.t_received_ns) // 2
        assert abs(stamp.t_server_ns - middle) <= (stamp.t_received_ns - stamp.t_sent_ns) / 2 + 1


def test_a_rank_0_that_never_comes_holds_nobody_up(writer: RecordWriter) -> None:
    asker = Asker(Shelf(), "key", {}, writer)
    asker.start()
    asker.end(within_s=5.0)
    assert not asker.is_alive()
    assert asker.trouble == "rank 0 did not publish its address"
    assert writer.num_dropped == 0


def test_a_rank_0_that_dies_holds_nobody_up(tmp_path: Path, writer: RecordWriter) -> None:
    shelf = Shelf()
    answerer = Answerer(shelf, "key", TOKEN, {}, one_host=True)
    answerer.start()
    asker = Asker(shelf, "key", {}, writer)
    asker.start()
    _until(lambda: asker.is_connected)
    answerer.end()
    asker.end(within_s=5.0)
    writer.close()
    assert not asker.is_alive()
    assert len(_stamps(tmp_path / "clock.jsonl")) == 4


def test_a_store_that_blocks_holds_nobody_up(writer: RecordWriter) -> None:
    release = threading.Event()

    class Stuck(Shelf):
        def check(self, keys: list[str]) -> bool:
            release.wait(20)
            return False

    asker = Asker(Stuck(), "key", {}, writer)
    asker.start()
    asker.end(within_s=0.05)
    assert asker.trouble == "the job's store did not answer"
    release.set()
    asker.join(20)


def test_an_address_that_does_not_answer_is_followed_by_the_next(
    tmp_path: Path, writer: RecordWriter
) -> None:
    shelf = Shelf()
    answerer = Answerer(shelf, "key", TOKEN, {}, one_host=True)
    answerer.start()
    _until(lambda: "key" in shelf.values)
    invitation = msgspec.json.decode(shelf.values["key"])
    invitation["network"] = "another machine's"
    invitation["hosts"] = ["no-such-host.invalid", "::1", "127.0.0.1"]  # it listens on the last
    shelf.set("key", msgspec.json.encode(invitation).decode())
    asker = Asker(shelf, "key", {}, writer)
    asker.start()
    _until(lambda: asker.is_connected)
    asker.end(within_s=5.0)
    answerer.end()
    assert asker.trouble == ""


def test_addresses_begin_with_the_one_that_the_job_uses() -> None:
    addresses = own_addresses({"MASTER_ADDR": "node7", "GLOO_SOCKET_IFNAME": "lo"})
    assert addresses[:2] == ("node7", "127.0.0.1")
    assert socket.gethostname() in addresses


def _status(session: Session) -> ProbeStatus:
    (status,) = [status for status in session.status() if status.name == "clock"]
    return status


def test_without_a_process_group_there_is_nobody_to_ask(tmp_path: Path) -> None:
    session = Session(tmp_path, options=OPTIONS, probes=[ClockProbe({})])
    session.step()
    session.close()
    assert _status(session).state == "unavailable"
    assert "no process group" in _status(session).reason
    assert not (tmp_path / "rank00000" / "clock.jsonl").exists()


def test_one_rank_has_nobody_to_ask(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        session = Session(tmp_path, options=OPTIONS, probes=[ClockProbe({})])
        session.close()
    finally:
        distributed.destroy_process_group()
    assert _status(session).reason == "a single rank has no other clock to compare with"


@pytest.mark.parametrize(
    ("world_size", "local_rank", "asks"), [(64, 7, True), (72, 7, False), (72, 0, True)]
)
def test_in_large_jobs_the_first_rank_of_each_host_asks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    world_size: int,
    local_rank: int,
    asks: bool,
) -> None:
    monkeypatch.setattr(
        "distprof_probes.probes.clock._process_group", lambda: (39, world_size, Shelf())
    )
    environment = {
        "RANK": "39",
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "4",
    }
    session = Session(tmp_path, options=OPTIONS, rank=39, probes=[ClockProbe(environment)])
    status = _status(session)
    session.close()
    if asks:
        assert status.state == "on"
    else:
        assert status.state == "unavailable"
        assert status.reason == "the first rank of this host compares clocks for it"


RANK = """
import sys, time
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from distprof_probes.probes.clock import ClockProbe
from distprof_probes.options import ProbeOptions
from distprof_probes.session import Session
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link, why_not

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
options = ProbeOptions(measure_overhead=False)
probes = [ClockProbe()]
session = Session(folder / "run", options=options, rank=rank, world_size=size, probes=probes)
dist.init_process_group(
    "gloo", init_method=sys.argv[4], rank=rank, world_size=size, timeout=timedelta(seconds=60)
)
session.step()
file = session.rank_dir / "clock.jsonl"
deadline = time.monotonic() + 60
while rank and time.monotonic() < deadline and len(file.read_bytes().splitlines()) < 5:
    time.sleep(0.05)
dist.barrier()
session.step()
session.close()
dist.destroy_process_group()
"""


@pytest.mark.distributed
def test_two_processes_of_one_host_have_one_clock(tmp_path: Path, warm_python: WarmPython) -> None:
    """The session comes before the process group, as it may; the store is torch's own."""
    store = f"file://{tmp_path}/store"
    _run_ranks(
        warm_python, [[sys.executable, *_arguments(rank, tmp_path, store)] for rank in range(2)]
    )
    stamps = _stamps(tmp_path / "run" / "rank00001" / "clock.jsonl")
    assert len(stamps) >= 4
    for stamp in stamps:
        middle = (stamp.t_sent_ns + stamp.t_received_ns) // 2
        assert abs(stamp.t_server_ns - middle) <= (stamp.t_received_ns - stamp.t_sent_ns) / 2 + 1
    statuses = _probe_states(tmp_path / "run")
    assert statuses == {0: ("on", "rank 0 provides the reference clock"), 1: ("on", "")}


@pytest.mark.distributed
@pytest.mark.skipif(bool(why_not()), reason=f"nodes cannot be emulated here: {why_not()}")
def test_two_nodes_find_each_other_through_the_jobs_own_store(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """Two networks, one machine: the clock is the same, and each way takes 2 ms."""
    with EmulatedNodes(2, Link(delay_ms=2.0, mbit_per_s=1000.0)) as nodes:
        store = f"tcp://{nodes.address(0)}:29711"
        commands = [
            nodes.command(rank, [sys.executable, *_arguments(rank, tmp_path, store)])
            for rank in range(2)
        ]
        _run_ranks(warm_python, commands, nodes.environment)
    stamps = _stamps(tmp_path / "run" / "rank00001" / "clock.jsonl")
    assert len(stamps) >= 4
    for stamp in stamps:
        way_ns = stamp.t_received_ns - stamp.t_sent_ns
        assert way_ns >= 3.9 * MS  # there and back
        middle = (stamp.t_sent_ns + stamp.t_received_ns) // 2
        assert abs(stamp.t_server_ns - middle) <= way_ns / 2
    assert min(abs(_offset_ns(stamp)) for stamp in stamps) < 1 * MS


def _offset_ns(stamp: ClockStamp) -> float:
    return stamp.t_server_ns - (stamp.t_sent_ns + stamp.t_received_ns) / 2


def _arguments(rank: int, folder: Path, store: str) -> list[str]:
    return ["-c", RANK, str(rank), "2", str(folder), store]


def _run_ranks(
    warm: WarmPython, commands: list[list[str]], environment: dict[str, str] | None = None
) -> None:
    ranks = [
        warm.popen(
            command,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        for command in commands
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)


def _probe_states(run: Path) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for rank in (0, 1):
        content: dict[str, Any] = msgspec.json.decode(
            (run / f"rank{rank:05d}" / "rank.json").read_bytes()
        )
        (clock,) = [probe for probe in content["probes"] if probe["name"] == "clock"]
        found[rank] = (clock["state"], clock["reason"])
    return found
