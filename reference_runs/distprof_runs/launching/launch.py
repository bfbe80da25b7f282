"""Starts ranks on this host with torch's elastic agent, and watches them with our supervisor.

As under torchrun, the agent connects the ranks of all nodes and sets their environment. It does not
decide which rank failed, because it would blame the first process to end, which is often a victim.
So the agent sees a change only after :class:`distprof_probes.job.supervise.Supervisor` has ended
the job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from distprof_probes.job import rank_process
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.supervise import Phase, Supervisor
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from distprof_runs.launching.meeting import Meeting

_LOOK_S = 0.05
_EXIT_BARRIER = timedelta(seconds=60)


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

    The supervisor knows how they ended. Variables of ``environment`` are added to the inherited
    ones. ``on_look`` is called about twenty times a second. KeyboardInterrupt if interrupted before
    any rank was started.
    """
    command = rank_process.command(run_dir, program)
    spec = WorkerSpec(
        role="rank",
        local_world_size=num_ranks,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=meeting,
        max_restarts=0,
        monitor_interval=_LOOK_S,
    )
    agent = _Agent(spec, supervisor=supervisor, interrupts=interrupts, on_look=on_look)
    with _quiet_torch(), _environment(environment):
        agent.run()


class _Agent(LocalElasticAgent):
    """torch's agent, which learns about the end of the ranks from the supervisor."""

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
        self._interrupts.install()  # the start has installed torch's own handlers
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
    """Does not redirect streams: :mod:`distprof_probes.job.rank_process` writes output.log."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """No redirection for any rank."""
        empty = dict.fromkeys(envs, "")
        return LogsDest(stdouts=dict(empty), stderrs=dict(empty), error_files=dict(empty))

    @property
    def root_log_dir(self) -> str:
        """None."""
        return ""


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the environment of the process, which ranks inherit."""
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
    """Keep the agent's log off the terminal: distprof reports what happened."""
    logger = logging.getLogger("torch.distributed.elastic")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
