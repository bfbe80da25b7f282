"""Exchanges time stamps with rank 0, so that clocks of different hosts can be compared.

Rank 0 answers requests on a UDP port. It publishes the port, with a random token, in the store of
the job's process group: this needs no shared file system and no fixed port. The other ranks send
requests at the start, every 30 seconds and at the end, from a separate thread. Training never waits
for them. If rank 0 is gone or a firewall blocks it, there are fewer stamps and the status says so.

Ranks of one host share a clock. In jobs of more than 64 ranks, only the first rank of each host
sends requests, to limit the load of rank 0.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from distprof.artefacts import CLOCK_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.environment import placement
from distprof_probes.probe import Probe, Recording, Unavailable
from distprof_probes.probes.clock_threads import Answerer, Asker

MOST_ASKERS = 64
_LAST_WITHIN_S = 0.5

_sessions = itertools.count()  # of this process; ranks open their sessions together


class ClockProbe(Probe):
    """Writes ``clock.jsonl`` on every rank that sends requests."""

    name = "clock"

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._environment = os.environ if environment is None else environment
        self._key = f"distprof/clock/{next(_sessions)}"
        self._session: Recording | None = None
        self._answerer: Answerer | None = None
        self._asker: Asker | None = None

    def start(self, session: Recording) -> None:
        """Start if the process group exists; Unavailable without need, or a rank to compare."""
        self._session = session
        self._begin()

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Start if the process group has been created since the last step."""
        if self._answerer is None and self._asker is None:
            self._begin()

    def pause(self) -> None:
        """Send no requests."""
        if self._asker is not None:
            self._asker.running.clear()

    def resume(self) -> None:
        """Send requests again."""
        if self._asker is not None:
            self._asker.running.set()

    def stop(self) -> None:
        """Send a last request, for half a second at most, and stop."""
        if self._asker is not None:
            self._asker.end(_LAST_WITHIN_S)
        if self._answerer is not None:
            self._answerer.end()
        self._session = None

    def status(self) -> ProbeStatus:
        """``unavailable`` while there is no rank to compare with."""
        if self._asker is None and self._answerer is None:
            reason = "there is no process group, so no rank to compare clocks with"
            return ProbeStatus(name=self.name, state="unavailable", reason=reason)
        own = super().status()
        trouble = self._asker.trouble if self._asker is not None else ""
        if trouble and not own.num_records:
            return msgspec.structs.replace(own, state="unavailable", reason=trouble)
        return own

    def _begin(self) -> None:
        group = _process_group()
        if group is None or self._session is None:
            return
        rank, world_size, store = group
        if world_size == 1:
            raise Unavailable("a single rank has no other clock to compare with")
        place = placement(self._environment)
        if rank == 0:
            alone = place.local_world_size == world_size
            self._answerer = Answerer(
                store, self._key, secrets.token_bytes(16), self._environment, one_host=alone
            )
            self.remark = "rank 0 provides the reference clock"
            self._answerer.start()
            return
        if world_size > MOST_ASKERS and place.local_rank:
            raise Unavailable("the first rank of this host compares clocks for it")
        writer = self.open_writer(self._session, CLOCK_FILE, "distprof.clock/1", {"server_rank": 0})
        self._asker = Asker(store, self._key, self._environment, writer)
        self._asker.start()


def _process_group() -> tuple[int, int, Any] | None:
    """Rank, world size and store of the default process group; None without one."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        from torch.distributed.distributed_c10d import _get_default_store
    except ImportError:
        raise Unavailable("this torch does not expose the store of its process group") from None
    return distributed.get_rank(), distributed.get_world_size(), _get_default_store()
