"""Starting ranks on this host with torch's elastic agent, and watching them with our own eyes.

The agent brings the ranks of all nodes together and gives each its environment, as torchrun does.
It does not decide who failed: it blames the first process to end, and that is often a victim. So
the agent sees a change only once :class:`probes.job.supervise.Supervisor` has brought the job to
its end.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from distprof.errors import UsageError
from probes.job import rank_process
from probes.job.interrupts import Interrupts
from probes.job.supervise import Phase, Supervisor

__all__ = ["Meeting", "start_ranks"]

_LOOK_S = 0.05
_EXIT_BARRIER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How the nodes of a job find each other.

    Args:
        nodes: How many.
        node_rank: Number of this one.
        endpoint: ``HOST:PORT`` on the first node; empty for a job on this host alone, which takes
            a free port.
        timeout_s: How long to wait for the other nodes.
    """

    nodes: int = 1
    node_rank: int = 0
    endpoint: str = ""
    timeout_s: int = 600

    def parameters(self) -> RendezvousParameters:
        """As torch's rendezvous wants them.

        Raises:
            UsageError: If this node is the first and its port is taken.
        """
        endpoint = self.endpoint or "localhost:0"
        if self.node_rank == 0:
            _check_port(endpoint)
        return RendezvousParameters(
            backend="static" if self.endpoint else "c10d",
            endpoint=endpoint,
            run_id="distprof" if self.endpoint else uuid.uuid4().hex,
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            local_addr=None if self.endpoint else "localhost",
            rank=self.node_rank,
            timeout=self.timeout_s,
        )


def _check_port(endpoint: str) -> None:
    """Find out before the job whether the first node's port can be had."""
    host, _, port = endpoint.rpartition(":")
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", int(port)))
                listener.listen(1)
        except OSError as error:
            reason = {
                errno.EADDRINUSE: "is in use on this node; choose another",
                errno.EACCES: "needs privileges; choose one above 1023",
            }.get(error.errno or 0)
            if reason:
                raise UsageError(f"--rdzv-endpoint {host}:{port}: port {port} {reason}") from error


def start_ranks(
    program: list[str],
    *,
    run_dir: Path,
    environment: Mapping[str, str],
    num_ranks: int,
    meeting: Meeting,
    supervisor: Supervisor,
    interrupts: Interrupts,
    on_look: Callable[[], None] = lambda: None,
) -> None:
    """Run ``program`` once per rank on this host and return when all have ended.

    How they ended is the supervisor's to tell.

    Args:
        program: Command of one rank, with its arguments.
        run_dir: Where each rank's directory is made and its output goes.
        environment: Added to what the ranks inherit.
        num_ranks: Ranks on this host.
        meeting: How nodes meet.
        supervisor: Is given the ranks to watch.
        interrupts: Served at each look.
        on_look: Called at each look, some twenty times a second.

    Raises:
        UsageError: If the port is taken.
        KeyboardInterrupt: If interrupted before any rank was started.
    """
    command = rank_process.command(run_dir, program)
    spec = WorkerSpec(
        role="rank",
        local_world_size=num_ranks,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(meeting.parameters()),
        max_restarts=0,
        monitor_interval=_LOOK_S,
    )
    agent = _Agent(spec, supervisor=supervisor, interrupts=interrupts, on_look=on_look)
    with _quiet_torch(), _environment(environment):
        try:
            agent.run()
        finally:
            spec.rdzv_handler.shutdown()


class _Agent(LocalElasticAgent):
    """torch's agent, which learns of the ranks' end from the supervisor."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        supervisor: Supervisor,
        interrupts: Interrupts,
        on_look: Callable[[], None],
    ) -> None:
        super().__init__(
            spec, logs_specs=_NoLogs(), exit_barrier_timeout=_EXIT_BARRIER.total_seconds()
        )
        self._supervisor = supervisor
        self._interrupts = interrupts
        self._on_look = on_look

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._interrupts.has_ranks = True
        pids: dict[int, Any] = super()._start_workers(worker_group)
        self._interrupts.install()  # starting has put torch's own handlers in place
        for worker in worker_group.workers:
            self._supervisor.watch(worker.global_rank, pids[worker.local_rank])
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._interrupts.serve(self._supervisor)
        phase = self._supervisor.look()
        self._on_look()
        if phase is not Phase.OVER:
            return RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        return result


class _NoLogs(LogsSpecs):
    """Leaves the ranks' streams alone: :mod:`probes.job.rank_process` sends them to output.log."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Nowhere else, for each of the ranks."""
        empty = dict.fromkeys(envs, "")
        return LogsDest(stdouts=dict(empty), stderrs=dict(empty), error_files=dict(empty))

    @property
    def root_log_dir(self) -> str:
        """There is none."""
        return ""


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """The process's environment with some variables more: ranks inherit it."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep the agent's log off the terminal: what happened is said once, by us."""
    logger = logging.getLogger("torch.distributed.elastic")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
