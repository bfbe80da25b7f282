"""Sources other than traces: logs and tables of other tools. This is their only registry.

Each module of :mod:`distprof.ingest.kinds` has the kinds that it reads in its tuple ``SOURCES``. A
source is either a separate run without ranks, or it accompanies a recording (``--with``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.assemble import assemble_run
from distprof.ingest.files import holds_traces
from distprof.run.run import ANOTHER_JOB, Run
from distprof.units import few_names


class Evidence(Protocol):
    """A piece of evidence from a source; a run keeps at most one of each type."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was damaged, left out or assumed, one sentence each."""


_T = TypeVar("_T", bound=Evidence)
# Modules of ``kinds``: imported by name, because their kinds are made of what is declared here.
MODULES = (
    "logs",
    "machine",
    "nccl",
    "operation_table",
    "operator_table",
    "small_tables",
    "timelines",
)
BESIDE_TRACES = ("operation_table", "timelines")
"""Those of which a folder may be although it holds a trace: all others need not be imported."""


class Source(msgspec.Struct, Generic[_T], frozen=True, kw_only=True):
    """One kind of source. Large readers are imported when a file of the kind is read."""

    # Position among all kinds, ascending. The first kind that fits reads a source, because some
    # formats could be mistaken for others. Files after ``--with`` are joined in the same order,
    # because one kind may use what an earlier one added.
    place: int
    origin: str  # What a run from this source alone is made of, for users: ``NCCL log``.
    # What a file of this kind is called, for users: ``an NCCL log``. Empty if the kind cannot
    # accompany a recording.
    name: str = ""
    bound: Bound  # Limits on what is read.
    # Whether a path or URL is of this kind; never raises for other files.
    fits: Callable[[str], bool]
    read: Callable[[str], _T]  # Reads it; raises InputError if it is damaged.
    # Kind of gap that notes of such a source become in a run; None if they are shown with its
    # figures instead.
    notes: Literal["damaged", "assumed"] | None = None
    # Adds what was read to a recording; None to use :func:`keep`.
    join: Callable[[Run, _T], Run] | None = None
    # Adds what else the source holds to a run from this source alone.
    complete: Callable[[Run], Run] | None = None
    is_in_others: bool = False  # Whether files of the other kinds may hold it as well.

    def run_of(self, path: str) -> Run:
        """A run of this source alone: it has no ranks, and analyses that need them say so."""
        empty = assemble_run(path, (), may_be_empty=True)
        run = keep(replace(empty, origin=self.origin), self.read(path), self.notes)
        return run if self.complete is None else self.complete(run)

    def joined(self, run: Run, path: str) -> Run:
        """A recording with the content of this source added, unless another job wrote it."""
        content = self.read(path)
        differs = _difference(run, content)
        if differs:
            message = f"Another job wrote {path}, so it is not used: {differs}."
            return replace(run, gaps=(*run.gaps, Gap(what=ANOTHER_JOB, message=message)))
        return keep(run, content, self.notes) if self.join is None else self.join(run, content)


def _difference(run: Run, content: Any) -> str:
    """Why a file is about another job than the recording; empty if it may be about the same job."""
    world_size, known = getattr(content, "world_size", None), run.topology.world_size
    if world_size is not None and known is not None and world_size > known:
        return f"it had {world_size} ranks, the recorded job {known}"
    hosts, recorded = getattr(content, "hosts", ()), {r.host for r in run.ranks if r.host}
    if hosts and recorded and not {_short(name) for name in hosts} & set(map(_short, recorded)):
        ran, known_as = (few_names(sorted(each), 1) for each in (hosts, recorded))
        return f"it ran on {ran}, the recorded job on {known_as}"
    versions = {_release(version) for version in getattr(content, "versions", ())} - {""}
    traced = {_release(rank.versions.get("nccl", "")) for rank in run.ranks} - {""}
    if versions and traced and not versions & traced:
        used, known_as = (few_names(sorted(each), 1) for each in (versions, traced))
        return f"it used NCCL {used}, the recorded job {known_as}"
    return ""


def _short(host: str) -> str:
    """The name of a host without its domain."""
    return host.partition(".")[0].lower()


def _release(version: str) -> str:
    """``2.20.5`` of ``2.20.5+cuda12.4``; empty if it does not start with three numbers."""
    match = re.match(r"\d{1,4}\.\d{1,4}\.\d{1,4}", version)
    return match[0] if match else ""


def keep(run: Run, content: Evidence, notes: Literal["damaged", "assumed"] | None) -> Run:
    """The run with a piece of evidence, replacing any of its type, and its notes as gaps."""
    gaps = [Gap(what=notes, message=note) for note in content.notes] if notes else []
    return replace(run.having(content), gaps=(*run.gaps, *gaps))


@cache
def known_sources(*, beside_traces: bool = False) -> tuple[Source[Any], ...]:
    """Every kind of source, or those that a folder with a trace may be, by its place."""
    names = BESIDE_TRACES if beside_traces else MODULES
    modules = (import_module(f"distprof.ingest.kinds.{name}") for name in names)
    return tuple(sorted(chain(*(m.SOURCES for m in modules)), key=lambda source: source.place))


def fitting_kind(path: str) -> Source[Any] | None:
    """The kind of a file or folder; None if it is of none, as traces are."""
    sources = known_sources(beside_traces=holds_traces(path))
    return next((source for source in sources if source.fits(path)), None)


def open_source(path: str) -> Run | None:
    """The run from a source of one of these kinds; None if it is of none."""
    kind = fitting_kind(path)
    if kind is None:
        return None
    run = kind.run_of(path)
    for other in (source for source in known_sources() if source.is_in_others):
        if other is not kind and other.fits(path):
            run = other.joined(run, path)
    return run


def with_evidence(run: Run, paths: Sequence[str]) -> Run:
    """The run joined with the additional files that the user named, in any order."""
    if not paths:
        return run
    companions = [source for source in known_sources() if source.name]
    fitting = {path: [kind for kind in companions if kind.fits(path)] for path in paths}
    for path, kinds_of_file in fitting.items():
        if not kinds_of_file:
            raise InputError(
                path,
                expected=" or ".join(source.name for source in companions),
                found="another kind of file",
                fix="name a file of one of these kinds with --with",
            )
    for source in companions:
        for path in paths:
            if source not in fitting[path]:
                continue
            known = len(run.gaps)
            run = source.joined(run, path)
            if any(gap.what == ANOTHER_JOB for gap in run.gaps[known:]):
                fitting[path] = []  # what else the file holds is of that job, too
    return run
