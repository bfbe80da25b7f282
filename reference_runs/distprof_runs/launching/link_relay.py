"""A link with a delay, for kernels without netem: TUN devices joined by one process.

Packets wait in memory until they are due. The kernel limits the rate (a token bucket on each
device), so this only adds the delay. Run it as ``python -m distprof_runs.launching.link_relay``. It
prints ``ready`` when the devices exist, and ends when its standard input ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

MTU = 65000
_NAMESPACES = Path("/var/run/netns")
_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF = 0x4004_54CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PR_SET_TIMERSLACK = 29
_MAX_WAITING = 4096  # packets; further ones are dropped, as by a full switch


def main(arguments: list[str]) -> int:
    """Join namespaces.

    Arguments are the delay one way in milliseconds, the device's name, then ``namespace=address``
    of each node.
    """
    delay_ns = int(float(arguments[0]) * 1e6)
    device = arguments[1]
    places = dict(part.split("=", 1) for part in arguments[2:])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the default slack is a quarter of a short delay
    files = {
        ipaddress.ip_address(address).packed: _open_tun(libc, namespace, device)
        for namespace, address in places.items()
    }
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _relay(files, delay_ns)
    return 0


def _open_tun(libc: ctypes.CDLL, namespace: str, device: str) -> int:
    """File descriptor of a new TUN device in ``namespace``."""
    with (_NAMESPACES / namespace).open() as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def _relay(files: Mapping[bytes, int], delay_ns: int) -> None:
    """Pass packets on until standard input ends."""
    waiting: deque[tuple[int, int, bytes]] = deque()  # due time, destination, packet
    sources = [sys.stdin.fileno(), *files.values()]
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic_ns()) / 1e9 if waiting else None
        readable, _, _ = select.select(sources, [], [], timeout)
        if sys.stdin.fileno() in readable:
            return
        for tun in readable:
            _take(tun, files, waiting, delay_ns)
        while waiting and waiting[0][0] <= time.monotonic_ns():
            _, target, packet = waiting.popleft()
            _write(target, packet)


def _take(
    tun: int, files: Mapping[bytes, int], waiting: deque[tuple[int, int, bytes]], delay_ns: int
) -> None:
    """Queue one packet of a device. Drop packets that are not for a node or exceed the limit."""
    try:
        packet = os.read(tun, MTU + 64)
    except BlockingIOError:
        return
    target = files.get(packet[16:20]) if packet[0] >> 4 == 4 else None  # IPv4 destination
    if target is not None and len(waiting) < _MAX_WAITING:
        waiting.append((time.monotonic_ns() + delay_ns, target, packet))


def _write(target: int, packet: bytes) -> None:
    """Deliver a packet. A device that is down or full loses it, and TCP sends it again."""
    try:
        os.write(target, packet)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
