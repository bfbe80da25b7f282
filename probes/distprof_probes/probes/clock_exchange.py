"""Asks another process for its time with datagrams, as NTP does.

A request holds a token and a number. The answer adds two stamps of the server's clock: when the
request arrived (stamped by the kernel, so that a busy interpreter does not distort it) and when the
answer left. A request without the right token gets no answer, and no answer is longer than its
request.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from distprof_probes.own_files import out_of_the_way

TOKEN_BYTES = 16
_QUESTION = struct.Struct(f"<{TOKEN_BYTES}sQqq")  # token, number, two stamps (0 in a question)
_TIMESPEC = struct.Struct("@ll")
_SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h; the message that carries it has the same number


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The four time stamps of a request and its answer, ns since the epoch."""

    sent_ns: int  # Local clock when the request left.
    arrived_ns: int  # Server's clock when it arrived.
    answered_ns: int  # Server's clock when the answer left.
    received_ns: int  # Local clock when the answer arrived.

    @property
    def offset_ns(self) -> int:
        """Server's clock minus the local clock (RFC 5905, section 8)."""
        return (self.arrived_ns - self.sent_ns + self.answered_ns - self.received_ns) // 2

    @property
    def delay_ns(self) -> int:
        """Round-trip time; the error of the offset is at most half of it."""
        return (self.received_ns - self.sent_ns) - (self.answered_ns - self.arrived_ns)


class TimeServer(threading.Thread):
    """Answers requests until :meth:`end`.

    Args:
        token: Token that requests must contain.
        host: Address to listen on; empty for all.
    """

    def __init__(self, token: bytes, host: str = "") -> None:
        super().__init__(name="distprof-clock", daemon=True)
        self._token = token
        self._socket = _server_socket(host)
        self._ended = False
        self._asked_s = 0.0  # time of the last request
        self.port: int = self._socket.getsockname()[1]  # The port on which it listens.

    def run(self) -> None:
        """Answer requests and ignore other datagrams. Idle between requests."""
        with self._socket:
            while not self._ended:
                try:
                    self._answer(*_receive(self._socket))
                except OSError:  # one client is gone
                    continue

    def end(self, *, linger_s: float = 0.0, within_s: float = 1.0) -> None:
        """Stop after ``linger_s`` seconds without a request, at the latest after ``within_s``."""
        began = time.monotonic()
        deadline = began + within_s
        while (now := time.monotonic()) < min(max(self._asked_s, began) + linger_s, deadline):
            time.sleep(min(0.01, deadline - now))
        self._ended = True
        self._wake()
        self.join(within_s)

    def _wake(self) -> None:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", (host, self.port))

    def _answer(self, data: bytes, arrived_ns: int, asker: Any) -> None:
        if len(data) != _QUESTION.size:
            return
        token, number, _, _ = _QUESTION.unpack(data)
        if token != self._token:
            return
        self._asked_s = time.monotonic()
        with contextlib.suppress(OSError):
            answer = _QUESTION.pack(token, number, arrived_ns, time.time_ns())
            self._socket.sendto(answer, asker)


def connect(host: str, port: int) -> socket.socket | None:
    """A socket connected to one server; None if its name cannot be resolved here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        asker = _out_of_the_way(socket.socket(family, kind, protocol))
    except OSError:
        return None
    try:
        asker.connect(address)
        _ask_for_stamps(asker)
    except OSError:
        asker.close()
        return None
    return asker


def ask(
    asker: socket.socket, token: bytes, *, times: int, timeout_s: float = 0.2
) -> list[Exchange]:
    """Exchange stamps up to ``times`` times; stop early if an answer is missing."""
    exchanges: list[Exchange] = []
    for _ in range(times):
        exchange = _ask_once(asker, token, timeout_s)
        if exchange is None:
            break
        exchanges.append(exchange)
    return exchanges


def best(exchanges: list[Exchange], count: int) -> list[Exchange]:
    """The exchanges with the shortest round trips, in order of time."""
    chosen = sorted(exchanges, key=lambda exchange: exchange.delay_ns)[:count]
    return sorted(chosen, key=lambda exchange: exchange.sent_ns)


def _ask_once(asker: socket.socket, token: bytes, timeout_s: float) -> Exchange | None:
    number = int.from_bytes(os.urandom(8), "little")
    deadline = time.monotonic() + timeout_s
    try:
        sent_ns = time.time_ns()
        asker.send(_QUESTION.pack(token, number, 0, 0))
        while (left := deadline - time.monotonic()) > 0:
            asker.settimeout(left)
            data, received_ns, _ = _receive(asker)
            if len(data) != _QUESTION.size:
                continue
            _, answered_number, arrived_ns, answered_ns = _QUESTION.unpack(data)
            if answered_number == number:  # not a late answer to an earlier request
                return Exchange(
                    sent_ns=sent_ns,
                    arrived_ns=arrived_ns,
                    answered_ns=answered_ns,
                    received_ns=received_ns,
                )
    except OSError:  # refused, unreachable, timed out
        pass
    return None


def _server_socket(host: str) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((host, 0))
    else:
        server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("", 0))
    _ask_for_stamps(server)
    return _out_of_the_way(server)


def _out_of_the_way(made: socket.socket) -> socket.socket:
    return socket.socket(fileno=out_of_the_way(made.detach()))


def _ask_for_stamps(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not Linux: use the interpreter's stamp
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def _receive(sock: socket.socket) -> tuple[bytes, int, Any]:
    """A datagram, its arrival (epoch ns, from the kernel if possible) and its sender."""
    data, ancillary, _, asker = sock.recvmsg(256, socket.CMSG_SPACE(_TIMESPEC.size))
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(payload) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(payload)
            return data, seconds * 1_000_000_000 + nanoseconds, asker
    return data, time.time_ns(), asker
