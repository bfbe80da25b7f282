"""The two sides of the clock comparison: the thread that answers, and the thread that asks."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts.records import ClockStamp
from distprof_probes.probes.clock_exchange import Exchange, TimeServer, ask, best, connect
from distprof_probes.records import RecordWriter

__all__ = ["Answerer", "Asker"]

PERIOD_S = 30.0
_SOON_S = 3.0  # the second time: a short job has two sets of stamps, too
_QUESTIONS = 16  # each time
_KEPT = 4
_INVITED_WITHIN_S = 120.0
_POLL_S = 0.2
_STORE_TIMEOUT = timedelta(seconds=10)
_SIOCGIFADDR = 0x8915  # netdevice(7)


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0 answers; JSON in the store.

    Args:
        hosts: Names and addresses to try, in order.
        network: Identity of rank 0's network; whoever has the same reaches it at 127.0.0.1.
        port: UDP.
        token: Hexadecimal.
    """

    hosts: tuple[str, ...]
    network: str
    port: int
    token: str


class Answerer(threading.Thread):
    """Rank 0's side: publishes where it answers. The answering itself is a thread of its own.

    Args:
        store: Of the default process group.
        key: To publish under.
        token: That askers must know.
        environment: Of the process.
        one_host: Whether all ranks are on this host, so that no other needs to be heard.
    """

    def __init__(
        self,
        store: Any,
        key: str,
        token: bytes,
        environment: Mapping[str, str],
        *,
        one_host: bool,
    ) -> None:
        super().__init__(name="distprof-clock-publish", daemon=True)
        self._store = store
        self._key = key
        self._server = TimeServer(token, "127.0.0.1" if one_host else "")
        self._invitation = Invitation(
            hosts=own_addresses(environment),
            network=network_identity(),
            port=self._server.port,
            token=token.hex(),
        )

    def run(self) -> None:
        """Publish and leave."""
        self._server.start()
        with contextlib.suppress(RuntimeError):  # the store is gone: the job ends
            own_store(self._store).set(self._key, msgspec.json.encode(self._invitation).decode())

    def end(self) -> None:
        """Stop answering, a moment after the last question."""
        self.join(1.0)
        self._server.end(linger_s=0.2, within_s=1.0)


class Asker(threading.Thread):
    """The other ranks' side.

    Args:
        store: Of the default process group.
        key: Where rank 0 publishes.
        environment: Of the process.
        writer: Takes the stamps.

    Attributes:
        running: Cleared while nothing may be asked.
        trouble: Why there are no stamps, one sentence.
    """

    def __init__(
        self, store: Any, key: str, environment: Mapping[str, str], writer: RecordWriter
    ) -> None:
        super().__init__(name="distprof-clock", daemon=True)
        self.running = threading.Event()
        self.running.set()
        self.trouble = ""
        self._store = store
        self._key = key
        self._environment = environment
        self._writer = writer
        self._ended = threading.Event()
        self._socket: socket.socket | None = None
        self._token = b""

    @property
    def is_connected(self) -> bool:
        """Whether rank 0 has answered."""
        return self._socket is not None

    def run(self) -> None:
        """Ask at the start, soon after, and every :data:`PERIOD_S` seconds."""
        try:
            invitation = self._await_invitation()
            if invitation is None:
                self.trouble = "rank 0 did not say where it answers"
                return
            self._accept(invitation)
            pause_s = _SOON_S
            while not self._ended.wait(pause_s):
                pause_s = PERIOD_S
                self.running.wait()
                if not self._ended.is_set():
                    self._write(self._ask())
        except Exception as error:  # an odd store, an odd network: no stamps, no harm
            self.trouble = f"{type(error).__name__}: {error}"

    def end(self, within_s: float) -> None:
        """Ask a last time and close, within ``within_s`` seconds."""
        deadline = time.monotonic() + within_s
        self._ended.set()
        self.running.set()
        self.join(within_s)
        if self.is_alive():
            self.trouble = self.trouble or "the job's store did not answer"
            return
        if self._socket is not None:
            timeout_s = max(min(0.2, deadline - time.monotonic()), 0.01)
            self._write(ask(self._socket, self._token, times=_QUESTIONS, timeout_s=timeout_s))
            self._socket.close()
            self._socket = None

    def _await_invitation(self) -> Invitation | None:
        store = own_store(self._store)
        deadline = time.monotonic() + _INVITED_WITHIN_S
        while time.monotonic() < deadline:
            if store.check([self._key]):  # get would wait, and hold what it holds
                return msgspec.json.decode(store.get(self._key), type=Invitation)
            if self._ended.wait(_POLL_S):
                return None
        return None

    def _accept(self, invitation: Invitation) -> None:
        """Find a way to rank 0 and ask for the first time."""
        self._token = bytes.fromhex(invitation.token)
        for host in _ways(invitation, self._environment):
            asker = connect(host, invitation.port)
            if asker is None:
                continue
            exchanges = ask(asker, self._token, times=_QUESTIONS)
            if exchanges:
                self._write(exchanges)
                self._socket = asker
                return
            asker.close()
        self.trouble = "rank 0 does not answer: UDP from this host to it may be blocked"
        self._ended.set()

    def _ask(self) -> list[Exchange]:
        if self._socket is None:
            return []
        return ask(self._socket, self._token, times=_QUESTIONS)

    def _write(self, exchanges: list[Exchange]) -> None:
        for exchange in best(exchanges, _KEPT):
            # Two stamps of the server give one: their middle, from which the usual formula gives
            # the same offset, and a delay that is never too small.
            middle_ns = (exchange.arrived_ns + exchange.answered_ns) // 2
            stamp = ClockStamp(
                t_sent_ns=exchange.sent_ns,
                t_server_ns=middle_ns,
                t_received_ns=exchange.received_ns,
            )
            self._writer.put(stamp)


def own_store(store: Any) -> Any:
    """A connection of our own to the same store: a wait on it holds nobody else up."""
    try:
        own = store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store  # only asked what it answers at once
    with contextlib.suppress(RuntimeError):
        own.set_timeout(_STORE_TIMEOUT)
    return own


def own_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names and addresses under which other hosts may reach this one, best first."""
    found = [environment.get("MASTER_ADDR", "")]  # rank 0 is there, as a rule
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        interface = environment.get(name, "").split(",")[0].lstrip("=^")
        found.append(_interface_address(interface))
    found += [socket.gethostname(), _outward_address()]
    return tuple(dict.fromkeys(host for host in found if host))


def network_identity() -> str:
    """The same text for processes that share a loopback interface; empty when unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""


def _ways(invitation: Invitation, environment: Mapping[str, str]) -> list[str]:
    ways = [environment.get("MASTER_ADDR", ""), *invitation.hosts]
    if invitation.network and invitation.network == network_identity():
        ways.insert(0, "127.0.0.1")
    return list(dict.fromkeys(way for way in ways if way))


def _interface_address(interface: str) -> str:
    """IPv4 address of a network interface; empty if there is none."""
    if not interface or sys.platform != "linux":
        return ""
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _outward_address() -> str:
    """Address of the interface that leads outside; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
            return str(sock.getsockname()[0])
        except OSError:
            return ""
