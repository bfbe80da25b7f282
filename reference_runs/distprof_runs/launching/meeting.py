"""Rendezvous of the launchers of a job's nodes: a store on the first node, keyed by node number.

torch's own static rendezvous waits inside C++, where it notices neither Ctrl-C nor a missing node
for ten minutes. This one polls, and names the missing nodes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from distprof_probes.job.messages import say
from torch.distributed import (  # type: ignore[attr-defined]  # documented there
    DistError,
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from distprof.errors import UsageError

_CONNECT = timedelta(seconds=3)
_LOOK_S = 0.1


@dataclass(slots=True, kw_only=True)
class Meeting(RendezvousHandler):
    """How the nodes of a job find each other."""

    nodes: int = 1  # Number of nodes.
    node_rank: int = 0  # Number of this one.
    # ``HOST:PORT`` on the first node; empty for a job on this host alone, which uses a free port.
    endpoint: str = ""
    timeout_s: float = 600.0  # How long to wait for the other nodes.
    _store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes.

        Raises:
            UsageError: If nodes are missing at the time limit; the message names them.
        """
        host, _, port = (self.endpoint or "localhost:0").rpartition(":")
        until = time.monotonic() + self.timeout_s
        self._store = store = self._enter(host, int(port), until)
        store.set(f"node/{self.node_rank}", "here")
        self._wait(store, until)
        return RendezvousInfo(
            PrefixStore("agents", store),
            self.node_rank,
            self.nodes,
            RendezvousStoreInfo(host, store.port),
        )

    def _enter(self, host: str, port: int, until: float) -> TCPStore:
        """Open the store on the first node; on the others, retry until it is open."""
        while True:
            try:
                return TCPStore(
                    host,
                    port,
                    is_master=self.node_rank == 0,
                    timeout=_CONNECT,
                    wait_for_workers=False,
                    multi_tenant=True,
                )
            except DistError as error:
                if self.node_rank == 0 or time.monotonic() > until:
                    raise UsageError(
                        f"--rdzv-endpoint {host}:{port} cannot be reached: {_first_line(error)}"
                    ) from error
            time.sleep(_LOOK_S)

    def _wait(self, store: TCPStore, until: float) -> None:
        missing = self._missing(store)
        if missing:
            say(f"waiting for {len(missing)} of {self.nodes} nodes at {self.endpoint}")
        while missing:
            if time.monotonic() > until:
                names = ", ".join(str(node) for node in missing)
                raise UsageError(
                    f"node {names} did not join at {self.endpoint} within {self.timeout_s:g} s"
                )
            time.sleep(_LOOK_S)
            missing = self._missing(store)

    def _missing(self, store: TCPStore) -> list[int]:
        return [node for node in range(self.nodes) if not store.check([f"node/{node}"])]

    def get_backend(self) -> str:
        """Name of this rendezvous."""
        return "distprof"

    def is_closed(self) -> bool:
        """Never: nodes do not join later."""
        return False

    def set_closed(self) -> None:
        """Nothing to do."""

    def num_nodes_waiting(self) -> int:
        """None: nodes do not join later."""
        return 0

    def get_run_id(self) -> str:
        """A name for this run."""
        return "distprof"

    def shutdown(self) -> bool:
        """Nothing to close: the store ends with the process."""
        return True

    @property
    def use_agent_store(self) -> bool:
        """Ranks use the same store, so no second port is needed."""
        return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
