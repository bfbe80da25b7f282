"""Writes NCCL's log to a file per rank: rings, trees, transports, algorithms.

NCCL reads its settings once, when the process creates its first communicator. So the session must
be opened before the first collective. Settings of the user are left unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from distprof.artefacts import NCCL_LOG_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.probe import Probe, Recording, Unavailable, Yielded

# COLL is left out: it writes a line per call on each rank. TUNING also writes one per collective,
# but only on the first rank of a communicator.
SUBSYSTEMS = "INIT,ENV,GRAPH,NET,TUNING"


class NcclDebugProbe(Probe):
    """Sets NCCL_DEBUG and related variables during the session."""

    name = "nccl_debug"

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        super().__init__()
        self._environment = os.environ if environment is None else environment
        self._set: dict[str, str] = {}
        self._file: Path | None = None
        self._backend = ""

    def start(self, session: Recording) -> None:
        """Enable NCCL's log; Unavailable without NCCL, Yielded if the user has set NCCL_DEBUG."""
        self._look_at_backend()
        level = self._environment.get("NCCL_DEBUG", "")
        if level:
            raise Yielded(f"NCCL_DEBUG={level} is set: NCCL writes {self._users_target()}")
        self._file = session.rank_dir / NCCL_LOG_FILE
        wanted = {"NCCL_DEBUG": "INFO"}
        if "NCCL_DEBUG_SUBSYS" not in self._environment:
            wanted["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
        # NCCL replaces %h and %p; double a percent sign in the folder's name.
        wanted["NCCL_DEBUG_FILE"] = str(self._file.absolute()).replace("%", "%%")
        if "NCCL_DEBUG_FILE" in self._environment:
            del wanted["NCCL_DEBUG_FILE"]
            self.remark = f"NCCL_DEBUG_FILE is set: NCCL writes {self._users_target()}"
        self._environment.update(wanted)
        self._set = wanted

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Give up as soon as it is clear that the job does not use NCCL."""
        if not self._backend:
            try:
                self._look_at_backend()
            except Unavailable:
                self.stop()
                raise

    def stop(self) -> None:
        """Restore the variables; NCCL has read them."""
        for name, value in self._set.items():
            if self._environment.get(name) == value:
                del self._environment[name]
        self._set = {}

    def status(self) -> ProbeStatus:
        """``unavailable`` while NCCL has written nothing."""
        own_target = self._file is not None and not self.remark
        if own_target and not _has_text(self._file):
            reason = (
                "NCCL wrote no log: it created no communicator, or the first before the session"
                if self._backend
                else "there was no process group: NCCL was not used"
            )
            return ProbeStatus(name=self.name, state="unavailable", reason=reason)
        return super().status()

    def _users_target(self) -> str:
        file = self._environment.get("NCCL_DEBUG_FILE", "")
        return f"to {file}" if file else "to standard output"

    def _look_at_backend(self) -> None:
        """Remember the backend of the default process group; Unavailable if it is not NCCL."""
        self._backend, named = backends()
        if self._backend and "nccl" not in self._backend:
            raise Unavailable(f"backend {named} writes no NCCL log")


def _has_text(file: Path | None) -> bool:
    try:
        return file is not None and file.stat().st_size > 0
    except OSError:
        return False


def backends() -> tuple[str, str]:
    """Backend of each kind of device, and a name for messages; empty without a process group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return "", ""
    config, named = str(distributed.get_backend_config()), str(distributed.get_backend())
    return config, config if named == "undefined" else named
