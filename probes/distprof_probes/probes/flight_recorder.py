"""torch's Flight Recorder: which collectives each rank enqueued, in which group and order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from distprof.artefacts import FLIGHT_FILE
from distprof.artefacts.files import write_atomically
from distprof_probes.environment import versions
from distprof_probes.probe import Recording, Tracer, Unavailable

_DUMPERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Groups on NCCL have a separate recorder; those of all other backends share the second one."""

_SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


class FlightRecorder(Tracer):
    """Writes ``flight.json`` in torch's own format: after the window, on errors, or at the end.

    The recorder is a ring buffer. Entries missing from a later dump are kept from the dump after
    the window, so that the file covers both the traced steps and the end.
    """

    name = "flight_recorder"

    def __init__(self) -> None:
        super().__init__()
        self._session: Recording
        self._dumps: dict[str, dict[str, Any]] = {}
        self._had_group = False

    def start(self, session: Recording) -> None:
        """Make the ring large enough for the window, which only works before the first group."""
        self._session = session
        if not any(name in os.environ for name in _SIZE_VARIABLES):
            os.environ[_size_variable()] = str(session.options.flight_entries)
        self._had_group = has_process_group()
        if self._had_group:
            self.remark = (
                "the process group is older than the session: its ring has torch's default size"
            )

    def between_steps(self, next_step: int) -> bool:
        """Dump when the window has ended."""
        self._had_group = self._had_group or has_process_group()
        traced = self._session.plan.traced
        return bool(traced) and next_step == traced.stop and self._save()

    def failed(self) -> None:
        """Dump: the last collective that each rank enqueued shows which stopped first."""
        self._save()

    def stop(self) -> None:
        """Dump, unless there is a dump already."""
        if not self._dumps and not self._save():
            raise Unavailable("no collective was recorded: there was no process group")

    def _save(self) -> bool:
        if not (self._had_group or has_process_group()):
            return False  # the call would create an empty recorder
        for name, dumper in _dumpers():
            now = json.loads(dumper())
            if now.get("entries"):
                self._dumps[name] = merge_dumps(self._dumps.get(name), now)
        if not self._dumps:
            return False
        joined = join_dumps(list(self._dumps.values()))
        self.num_records = len(joined["entries"])
        write_atomically(self._session.rank_dir / FLIGHT_FILE, json.dumps(joined).encode())
        return True


def join_dumps(dumps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One dump with the groups and entries of several recorders of a process.

    Everything else comes from the first one.
    """
    joined = dict(dumps[0])
    for dump in dumps[1:]:
        for groups in ("pg_config", "pg_status"):
            joined[groups] = {**dump.get(groups, {}), **joined.get(groups, {})}
        joined["entries"] = sorted(
            [*joined["entries"], *dump["entries"]],
            key=lambda entry: entry.get("time_created_ns", 0),
        )
    return joined


def merge_dumps(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """``now``, preceded by the entries of ``before`` that the ring has lost since."""
    if before is None:
        return now
    known = {entry.get("record_id") for entry in now["entries"]}
    lost = [entry for entry in before["entries"] if entry.get("record_id") not in known]
    return {**now, "entries": [*lost, *now["entries"]]}


def _size_variable() -> str:
    """Name of the variable: torch 2.9 renamed it and warns about the old name."""
    major, minor = (int(part) for part in versions().get("torch", "2.9").split(".")[:2])
    new, old = _SIZE_VARIABLES
    return new if (major, minor) >= (2, 9) else old


def has_process_group() -> bool:
    """Whether there is a default process group; without one, a dump would make an empty ring."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _dumpers() -> list[tuple[str, Callable[[], bytes | str]]]:
    """The dump functions of this torch, by name; none without torch.distributed."""
    module = sys.modules.get("torch._C._distributed_c10d")
    if module is None:
        return []
    found = [(name, getattr(module, name)) for name in _DUMPERS if hasattr(module, name)]
    if not found:
        raise Unavailable("this torch's Flight Recorder cannot write JSON")
    return found
