"""Sessions for tests: a clock that is told the time, probes that remember, files read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from distprof_probes.options import ProbeOptions
from distprof_probes.probe import Probe, Recording
from distprof_probes.session import Session

from distprof.artefacts import RANK_FILE, STEPS_FILE
from distprof.artefacts.records import StepRecord
from distprof.artefacts.run_file import ProbeStatus, RankFile

QUIET = ProbeOptions(mode="always-on", measure_overhead=False)

_Record = TypeVar("_Record")


class Clock:
    """Tells the time it is set to."""

    def __init__(self, now_ns: int = 1_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class Witness(Probe):
    """Writes down every call; fails or refuses where it is told to."""

    name = "witness"

    def __init__(self, name: str = "witness", **raises: BaseException) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.calls: list[str] = []
        self._raises = raises

    def start(self, session: Recording) -> None:
        self._seen("start")

    def step_started(self, step: int) -> None:
        self._seen("step_started", step)

    def step_ended(self, step: int) -> None:
        self._seen("step_ended", step)

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        self._seen("phase_ended", name, end_ns - start_ns)

    def pause(self) -> None:
        self._seen("pause")

    def resume(self) -> None:
        self._seen("resume")

    def stop(self) -> None:
        self._seen("stop")

    def _seen(self, what: str, *details: object) -> None:
        self.calls.append(" ".join(str(part) for part in (what, *details)))
        if what in self._raises:
            raise self._raises[what]


def open_session(
    run_dir: Path,
    probes: Sequence[Probe] = (),
    *,
    options: ProbeOptions = QUIET,
    clock: Clock | None = None,
    **keywords: Any,
) -> Session:
    if clock is not None:
        keywords.update(clock=clock, timer=clock)
    return Session(run_dir, options=options, probes=list(probes), **keywords)


def lines_of(file: Path, kind: type[_Record]) -> list[_Record]:
    """All records of a line-wise file, without its header."""
    return [msgspec.json.decode(line, type=kind) for line in file.read_bytes().splitlines()[1:]]


def steps_of(run_dir: Path, rank: int = 0) -> list[StepRecord]:
    return lines_of(run_dir / f"rank{rank:05d}" / STEPS_FILE, StepRecord)


def rank_file_of(run_dir: Path, rank: int = 0) -> RankFile:
    return msgspec.json.decode(
        (run_dir / f"rank{rank:05d}" / RANK_FILE).read_bytes(), type=RankFile
    )


def status_of(run_dir: Path, probe: str, rank: int = 0) -> ProbeStatus:
    return next(item for item in rank_file_of(run_dir, rank).probes if item.name == probe)
