"""The two sides of the clock comparison: the thread that answers and the thread that asks."""

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

PERIOD_S = 30.0
_SOON_S = 3.0  # until the second set of stamps: even a short job gets two sets
_QUESTIONS = 16  # each time
_KEPT = 4
_INVITED_WITHIN_S = 120.0
_POLL_S = 0.2
_STORE_TIMEOUT = timedelta(seconds=10)
_SIOCGIFADDR = 0x8915  # netdevice(7)


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0 answers; JSON in the store."""

    hosts: tuple[str, ...]  # Names and addresses to try, in order.
    network: str  # Identity of rank 0's network; a process with the same one uses 127.0.0.1.
    port: int  # UDP port.
    token: str  # Token, hexadecimal.


class Answerer(threading.Thread):
    """Rank 0's side: publishes its address. A separate thread answers.

    Args:
        store: Of the default process group.
        key: Key of the invitation in the store.
        token: Token that requests must contain.
        environment: The process's environment.
        one_host: Whether all ranks are on this host, so that loopback suffices.
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
        """Publish the invitation and end."""
        self._server.start()
        with contextlib.suppress(RuntimeError):  # the store is gone: the job ends
            own_store(self._store).set(self._key, msgspec.json.encode(self._invitation).decode())

    def end(self) -> None:
        """Stop answering, a moment after the last request."""
        self.join(1.0)
        self._server.end(linger_s=0.2, within_s=1.0)


class Asker(threading.Thread):
    """The other ranks' side.

    Args:
        store: Of the default process group.
        key: Key of rank 0's invitation in the store.
        environment: The process's environment.
        writer: Writes the stamps.
    """

    def __init__(
        self, store: Any, key: str, environment: Mapping[str, str], writer: RecordWriter
    ) -> None:
        super().__init__(name="distprof-clock", daemon=True)
        self.running = threading.Event()  # Cleared while no request may be sent.
        self.running.set()
        self.trouble = ""  # Why there are no stamps, in one sentence.
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
        """Send requests at the start, soon after, and every :data:`PERIOD_S` seconds."""
        try:
            invitation = self._await_invitation()
            if invitation is None:
                self.trouble = "rank 0 did not publish its address"
                return
            self._accept(invitation)
            pause_s = _SOON_S
            while not self._ended.wait(pause_s):
                pause_s = PERIOD_S
                self.running.wait()
                if not self._ended.is_set():
                    self._write(self._ask())
        except Exception as error:  # an unusual store or network: go without stamps
            self.trouble = f"{type(error).__name__}: {error}"

    def end(self, within_s: float) -> None:
        """Send a last request and close, within ``within_s`` seconds."""
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
            if store.check([self._key]):  # get would wait and hold its lock
                return msgspec.json.decode(store.get(self._key), type=Invitation)
            if self._ended.wait(_POLL_S):
                return None
        return None

    def _accept(self, invitation: Invitation) -> None:
        """Find an address of rank 0 that answers, and send the first requests."""
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
        self.trouble = "rank 0 does not answer: UDP to it may be blocked from this host"
        self._ended.set()

    def _ask(self) -> list[Exchange]:
        if self._socket is None:
            return []
        return ask(self._socket, self._token, times=_QUESTIONS)

    def _write(self, exchanges: list[Exchange]) -> None:
        for exchange in best(exchanges, _KEPT):
            # The server's two stamps are combined into their middle. The usual formula then gives
            # the same offset, and a delay that is never too small.
            middle_ns = (exchange.arrived_ns + exchange.answered_ns) // 2
            stamp = ClockStamp(
                t_sent_ns=exchange.sent_ns,
                t_server_ns=middle_ns,
                t_received_ns=exchange.received_ns,
            )
            self._writer.put(stamp)


def own_store(store: Any) -> Any:
    """A separate connection to the same store, so that waiting on it delays no other user."""
    try:
        own = store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store  # used only for calls that return at once
    with contextlib.suppress(RuntimeError):
        own.set_timeout(_STORE_TIMEOUT)
    return own


def own_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names and addresses at which other hosts may reach this one, best first."""
    found = [environment.get("MASTER_ADDR", "")]  # usually rank 0's host
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        interface = environment.get(name, "").split(",")[0].lstrip("=^")
        found.append(_interface_address(interface))
    found += [socket.gethostname(), _outward_address()]
    return tuple(dict.fromkeys(host for host in found if host))


def network_identity() -> str:
    """A text that is equal for processes that share a loopback interface; empty if unknown."""
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
    """Address of the interface with the default route; this sends no data."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
            return str(sock.getsockname()[0])
        except OSError:
            return ""
