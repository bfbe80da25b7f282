"""NCCL's own log, in a file per rank: rings, trees, transports, algorithms.

NCCL reads its settings once, when the process makes its first communicator, so the session must be
opened before the first collective. What the user has set is left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.artefacts import NCCL_LOG_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.probe import Probe, Unavailable, Yielded

if TYPE_CHECKING:
    from distprof_probes.session import Session

__all__ = ["SUBSYSTEMS", "NcclDebugProbe"]

# COLL is left out: a line for each call on each rank. TUNING writes one for each collective too,
# but on the first rank of a communicator only.
SUBSYSTEMS = "INIT,ENV,GRAPH,NET,TUNING"


class NcclDebugProbe(Probe):
    """Sets NCCL_DEBUG and its companions for the time of the session.

    Args:
        environment: In place of ``os.environ``.
    """

    name = "nccl_debug"

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        super().__init__()
        self._environment = os.environ if environment is None else environment
        self._set: dict[str, str] = {}
        self._file: Path | None = None
        self._backend = ""

    def start(self, session: Session) -> None:
        """Ask NCCL for a log.

        Raises:
            Unavailable: If the job's process group is not of NCCL.
            Yielded: If the user has settings of their own.
        """
        self._look_at_backend()
        level = self._environment.get("NCCL_DEBUG", "")
        if level:
            raise Yielded(f"NCCL_DEBUG={level} is set: NCCL writes {self._users_target()}")
        self._file = session.rank_dir / NCCL_LOG_FILE
        wanted = {"NCCL_DEBUG": "INFO"}
        if "NCCL_DEBUG_SUBSYS" not in self._environment:
            wanted["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
        # NCCL replaces %h and %p; a percent sign of the folder's name is doubled.
        wanted["NCCL_DEBUG_FILE"] = str(self._file.absolute()).replace("%", "%%")
        if "NCCL_DEBUG_FILE" in self._environment:
            del wanted["NCCL_DEBUG_FILE"]
            self.remark = f"NCCL_DEBUG_FILE is set: NCCL writes {self._users_target()}"
        self._environment.update(wanted)
        self._set = wanted

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Give up as soon as the job shows that it works without NCCL."""
        if not self._backend:
            try:
                self._look_at_backend()
            except Unavailable:
                self.stop()
                raise

    def stop(self) -> None:
        """Take back what was set; NCCL has read it."""
        for name, value in self._set.items():
            if self._environment.get(name) == value:
                del self._environment[name]
        self._set = {}

    def status(self) -> ProbeStatus:
        """``unavailable`` as long as NCCL has written nothing."""
        own_target = self._file is not None and not self.remark
        if own_target and not _has_text(self._file):
            reason = (
                "NCCL wrote no log: it made no communicator, or made its first before the session"
                if self._backend
                else "there was no process group: NCCL was not used"
            )
            return ProbeStatus(name=self.name, state="unavailable", reason=reason)
        return super().status()

    def _users_target(self) -> str:
        file = self._environment.get("NCCL_DEBUG_FILE", "")
        return f"to {file}" if file else "to standard output"

    def _look_at_backend(self) -> None:
        """Remember the backend of the default process group, if there is one by now.

        Raises:
            Unavailable: If it is another than NCCL.
        """
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return
        if distributed.is_initialized():
            self._backend = str(distributed.get_backend_config())
            if "nccl" not in self._backend:
                named = str(distributed.get_backend())
                named = self._backend if named == "undefined" else named
                raise Unavailable(f"backend {named} writes no NCCL log")


def _has_text(file: Path | None) -> bool:
    try:
        return file is not None and file.stat().st_size > 0
    except OSError:
        return False
