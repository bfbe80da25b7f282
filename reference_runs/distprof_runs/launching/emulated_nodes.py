"""Nodes on one machine: network namespaces joined by a link with a given delay and rate.

Ranks of one node communicate through its loopback, ranks of different nodes through the link, as on
a real cluster with a slow network. This needs root, ``ip`` and ``tc``. A token bucket on each
node's device limits the rate. The delay comes from netem if the kernel has it, else from
:mod:`distprof_runs.launching.link_relay`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from distprof.errors import UsageError
from distprof_runs.launching.link_relay import MTU

DEVICE = "dplink"
_HOSTS = Path("/etc/netns")  # files here replace those of /etc inside `ip netns exec`
_BURST_BYTES = 131_072  # size of the token bucket: two packets of a TUN device
_SUBNET = "10.77.0"  # visible only in these namespaces
_numbers = count()
_START = 'hostname "$0" && exec "$@"'  # in a namespace of host names, so that traces differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two nodes."""

    delay_ms: float = 0.0  # One-way delay, in addition to the machine's own.
    mbit_per_s: float = 0.0  # Rate at which each node can send; 0 for no limit.


def why_not() -> str:
    """Why this machine cannot emulate nodes, in one sentence; empty if it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian, Ubuntu: apt install iproute2)"
    if os.geteuid() != 0:
        return "creating network namespaces needs root"
    probe = f"distprof-{os.getpid()}-probe"
    made = _run("ip", "netns", "add", probe, check=False)
    _run("ip", "netns", "del", probe, check=False)
    return "" if made.returncode == 0 else f"ip netns add failed: {made.stderr.strip()}"


class EmulatedNodes:
    """A context manager: the namespaces of 2 to 16 nodes exist inside the block.

    Entering raises a UsageError if this machine cannot do it.
    """

    def __init__(self, num_nodes: int, link: Link) -> None:
        if not 2 <= num_nodes <= 16:
            raise UsageError(f"--emulate-nodes {num_nodes}: choose 2 to 16 nodes")
        self.num_nodes = num_nodes
        self.link = link
        self._prefix = f"distprof-{os.getpid()}-{next(_numbers)}"
        self._relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        reason = why_not()
        if reason:
            raise UsageError(f"nodes cannot be emulated here: {reason}")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, node: int) -> str:
        """IPv4 address of a node on the link."""
        return f"{_SUBNET}.{node + 1}"

    def host(self, node: int) -> str:
        """Host name of a node."""
        return f"node{node}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs on the nodes, which select the network device."""
        return {"GLOO_SOCKET_IFNAME": DEVICE, "NCCL_SOCKET_IFNAME": DEVICE}

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """The command line that runs ``program`` on a node."""
        inside = ["ip", "netns", "exec", self._namespace(node), "unshare", "--uts", "sh", "-c"]
        return [*inside, _START, self.host(node), *program]

    def _namespace(self, node: int) -> str:
        return f"{self._prefix}-{node}"

    def _make(self) -> None:
        nodes = range(self.num_nodes)
        names = "127.0.0.1 localhost\n" + "".join(
            f"{self.address(node)} {self.host(node)}\n" for node in nodes
        )
        for node in nodes:
            _run("ip", "netns", "add", self._namespace(node))
            folder = _HOSTS / self._namespace(node)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(names)
            self._inside(node, "ip", "link", "set", "lo", "up")
        use_relay = self.link.delay_ms > 0 and not _has_netem()
        if use_relay:
            self._join_by_relay()
        else:
            self._join_by_bridge()
        for node in nodes:
            self._inside(node, "ip", "address", "add", f"{self.address(node)}/24", "dev", DEVICE)
            self._inside(node, "ip", "link", "set", DEVICE, "up")
            self._shape(node, with_delay=not use_relay)

    def _join_by_bridge(self) -> None:
        """A virtual Ethernet cable from each node to a switch in a separate namespace."""
        hub = f"{self._prefix}-hub"
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "switch", "up")
        for node in range(self.num_nodes):
            port = f"port{node}"
            peer = ["peer", "name", DEVICE, "netns", self._namespace(node)]
            _run("ip", "-n", hub, "link", "add", port, "type", "veth", *peer)
            _run("ip", "-n", hub, "link", "set", port, "master", "switch", "up")

    def _join_by_relay(self) -> None:
        """A TUN device in each node, and the process between them."""
        places = [f"{self._namespace(node)}={self.address(node)}" for node in range(self.num_nodes)]
        command = [
            sys.executable,
            "-m",
            "distprof_runs.launching.link_relay",
            str(self.link.delay_ms),
        ]
        self._relay = subprocess.Popen(
            [*command, DEVICE, *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the ranks; the link goes last
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "ready\n":
            raise UsageError("the relay between emulated nodes did not start: check /dev/net/tun")
        for node in range(self.num_nodes):
            self._inside(node, "ip", "link", "set", DEVICE, "mtu", str(MTU))

    def _shape(self, node: int, *, with_delay: bool) -> None:
        """Limit the rate of a node's outgoing traffic, and delay it if netem is available."""
        add = ["tc", "qdisc", "add", "dev", DEVICE]
        at = ["root"]
        if with_delay and self.link.delay_ms > 0:
            self._inside(
                node, *add, "root", "handle", "1:", "netem", "delay", f"{self.link.delay_ms}ms"
            )
            at = ["parent", "1:"]
        if self.link.mbit_per_s > 0:
            rate = ["rate", f"{self.link.mbit_per_s}mbit", "burst", str(_BURST_BYTES)]
            self._inside(node, *add, *at, "tbf", *rate, "latency", "200ms")

    def _inside(self, node: int, *command: str) -> None:
        _run("ip", "netns", "exec", self._namespace(node), *command)

    def _remove(self) -> None:
        if self._relay is not None:
            self._relay.communicate()  # closes its standard input, which ends it
            self._relay = None
        for name in [*map(self._namespace, range(self.num_nodes)), f"{self._prefix}-hub"]:
            _run("ip", "netns", "del", name, check=False)
            shutil.rmtree(_HOSTS / name, ignore_errors=True)


def _has_netem() -> bool:
    """Whether the kernel has netem, tried on the loopback of a temporary namespace."""
    probe = f"distprof-{os.getpid()}-probe"
    _run("ip", "netns", "add", probe)
    try:
        tried = _run(
            *("ip", "netns", "exec", probe, "tc", "qdisc", "add", "dev", "lo", "root"),
            *("netem", "delay", "1ms"),
            check=False,
        )
        return tried.returncode == 0
    finally:
        _run("ip", "netns", "del", probe, check=False)


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise UsageError(
            f"nodes cannot be emulated: `{' '.join(command)}` failed: {done.stderr.strip()}"
        )
    return done
