"""Sources that are no traces: logs and tables of other tools. This is the only registry of them.

A kind of source is one module of :mod:`distprof.ingest.kinds`, whose ``SOURCE`` says how it is
recognised and read, and what it adds to a run. Kinds are found by looking into that package, so a
new format is a new module there and nothing else. A source is either a run of its own, without
ranks, or it goes with a recording (``--with``); the recording stays what it was.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest import kinds
from distprof.ingest.assemble import assemble_run
from distprof.run.run import ANOTHER_JOB, Gap, Run

__all__ = ["Evidence", "Source", "keep", "known_sources", "open_source", "with_evidence"]


class Evidence(Protocol):
    """What a source says: one piece of evidence, kept in a run by its type."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was damaged, left out or assumed, one sentence each."""


_T = TypeVar("_T", bound=Evidence)


class Source(msgspec.Struct, Generic[_T], frozen=True, kw_only=True):
    """One kind of source. Large readers are imported when a file of the kind is read.

    Args:
        place: Its place among all kinds, ascending: the first that fits reads a source, since some
            formats could be taken for others. What is named after ``--with`` is joined in the same
            order, since one kind may use what an earlier one has added.
        origin: What a run of this source alone is made of, for people: ``log of NCCL``.
        name: What a file of this kind is, for people: ``a log of NCCL``. Empty where the kind
            cannot go with a recording.
        bound: What is read at most.
        fits: Whether a path or URL is of this kind; never raises for what is not.
        read: Reads it; raises InputError where it is damaged.
        notes: What the notes of such a source are among the run's gaps; None where they are shown
            with its figures instead.
        join: A recording with what was read; None to keep it as :func:`keep` does.
        complete: A run of this source alone with what else the source holds.
    """

    place: int
    origin: str
    name: str = ""
    bound: Bound
    fits: Callable[[str], bool]
    read: Callable[[str], _T]
    notes: Literal["damaged", "assumed"] | None = None
    join: Callable[[Run, _T], Run] | None = None
    complete: Callable[[Run], Run] | None = None

    def run_of(self, path: str) -> Run:
        """A run of this source alone: it has no ranks, and analyses that need them say so."""
        empty = assemble_run(path, (), may_be_empty=True)
        run = keep(replace(empty, origin=self.origin), self.read(path), self.notes)
        return run if self.complete is None else self.complete(run)

    def joined(self, run: Run, path: str) -> Run:
        """A recording with what this source says."""
        content = self.read(path)
        both = keep(run, content, self.notes) if self.join is None else self.join(run, content)
        differs = _difference(run, content)
        if not differs:
            return both
        message = f"Another job wrote {path}: {differs}."
        return replace(both, gaps=(*both.gaps, Gap(what=ANOTHER_JOB, message=message)))


def _difference(run: Run, content: Any) -> str:
    """Why a file is about another job than the recording; empty where it may be about the same."""
    world_size, known = getattr(content, "world_size", None), run.topology.world_size
    if world_size is not None and known is not None and world_size > known:
        return f"it had {world_size} ranks, the recorded one {known}"
    hosts, recorded = getattr(content, "hosts", ()), {r.host for r in run.ranks if r.host}
    if hosts and recorded and not {_short(name) for name in hosts} & set(map(_short, recorded)):
        return f"it ran on {_first(hosts)}, the recorded one on {_first(recorded)}"
    versions = {_release(version) for version in getattr(content, "versions", ())} - {""}
    traced = {_release(rank.versions.get("nccl", "")) for rank in run.ranks} - {""}
    if versions and traced and not versions & traced:
        return f"it used NCCL {_first(versions)}, the recorded one {_first(traced)}"
    return ""


def _short(host: str) -> str:
    """The name of a host without its domain."""
    return host.partition(".")[0].lower()


def _release(version: str) -> str:
    """``2.20.5`` of ``2.20.5+cuda12.4``; empty where it is no version of three numbers."""
    found = re.match(r"\d{1,4}\.\d{1,4}\.\d{1,4}", version)
    return found[0] if found else ""


def _first(names: Iterable[str]) -> str:
    """The first name in order, with a number where there are more."""
    first, *more = sorted(names)
    return f"{first} and {len(more)} more" if more else first


def keep(run: Run, content: Evidence, notes: Literal["damaged", "assumed"] | None) -> Run:
    """The run with a piece of evidence, in place of one of its type, and its notes as gaps."""
    gaps = [Gap(what=notes, message=note) for note in content.notes] if notes else []
    return replace(run.having(content), gaps=(*run.gaps, *gaps))


@cache
def known_sources() -> tuple[Source[Any], ...]:
    """Every kind of source, by its place."""
    modules = (f"{kinds.__name__}.{found.name}" for found in pkgutil.iter_modules(kinds.__path__))
    sources: list[Source[Any]] = [import_module(module).SOURCE for module in modules]
    return tuple(sorted(sources, key=lambda source: source.place))


def open_source(path: str) -> Run | None:
    """The run that a source of one of these kinds holds; None where it is of none.

    Args:
        path: Path or URL.

    Raises:
        InputError: If it is of one of them, and cannot be read.
    """
    found = next((source for source in known_sources() if source.fits(path)), None)
    return None if found is None else found.run_of(path)


def with_evidence(run: Run, paths: Sequence[str]) -> Run:
    """The run joined with the additional files that the user named, in any order.

    Args:
        run: The recording.
        paths: Paths or URLs, each of a kind that can go with a recording.

    Raises:
        InputError: If one has another kind, or is unreadable.
    """
    if not paths:
        return run
    companions = [source for source in known_sources() if source.name]
    fitting = {path: _fitting(path, companions) for path in paths}
    for source in companions:
        for path in paths:
            if source in fitting[path]:
                run = source.joined(run, path)
    return run


def _fitting(path: str, companions: Sequence[Source[Any]]) -> list[Source[Any]]:
    """All kinds that a file is of: a terminal may hold NCCL's lines and the program's own."""
    found = [source for source in companions if source.fits(path)]
    if not found:
        raise InputError(
            path,
            expected=" or ".join(source.name for source in companions),
            found="another kind of file",
            fix="name a file of one of these kinds with --with",
        )
    return found
