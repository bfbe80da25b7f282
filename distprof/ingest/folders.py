"""Folders with one source per file: files of one job are read, files of several are refused.

Kinds that read a whole folder themselves (NCCL logs, sensors, the ranks of a pipeline) are
recognised earlier. This module handles folders without a trace whose files belong to kinds that are
read file by file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from distprof.bounds import expanded
from distprof.errors import InputError
from distprof.ingest.discovery import rank_in_name
from distprof.ingest.kinds import training_log
from distprof.ingest.source import Source, known_sources
from distprof.run.logs import TrainingLog
from distprof.run.run import Gap, Run

_MAX_FILES = 256
"""Number of files that are checked: a folder with more holds something else."""

_MAX_NAMED = 4

SourceFile = tuple[Source[Any], str]
"""A kind of source, and a file or folder of that kind."""


def open_folder(source: str) -> Run | None:
    """The run in the files of a folder; None for anything else, or if none of them is a source.

    One file of each kind is read, and those that can accompany a recording are joined. Several logs
    of a training program belong to one job if they report the same iterations.

    Raises:
        InputError: If files of one kind are from several jobs.
    """
    sources = _sources_inside(source)
    if not sources:
        return None
    chosen = _one_of_each(source, sources)
    (kind, path), *others = chosen
    run = kind.run_of(path)
    for other, place in others:
        run = other.joined(run, place) if other.name else run
    return _with_note(run, path, len(sources) - len(chosen))


def files_of_evidence(sources: Sequence[str]) -> list[str]:
    """Files that accompany a recording, with folders replaced by the files inside.

    A folder that one kind reads as a whole stays a folder.

    Raises:
        InputError: If files of one kind are from several jobs.
    """
    paths: list[str] = []
    for source in sources:
        inside = () if _kind_of(source) is not None else _sources_inside(source)
        chosen = _one_of_each(source, [one for one in inside if one[0].name])
        paths += [path for _, path in chosen] or [source]
    return paths


def _one_of_each(source: str, sources: Sequence[SourceFile]) -> list[SourceFile]:
    """One file of each kind, in the order of kinds.

    Raises:
        InputError: If files of one kind are from several jobs.
    """
    by_kind: dict[int, list[SourceFile]] = {}
    for one in sorted(sources, key=lambda one: (one[0].place, one[1])):
        by_kind.setdefault(one[0].place, []).append(one)
    return [_only_one(source, several) for several in by_kind.values()]


def _sources_inside(source: str) -> list[SourceFile]:
    """Files and folders below a folder that are of a known kind."""
    root = Path(expanded(source))
    if "://" in source or not root.is_dir():
        return []
    sources: list[SourceFile] = []
    num_files = 0
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folder_kind = _kind_of(parent) if Path(parent) != root else None
        if folder_kind is not None:
            folders.clear()
            sources.append((folder_kind, parent))
            continue
        files = [str(Path(parent, name)) for name in sorted(names) if not name.startswith(".")]
        num_files += len(files)
        if num_files > _MAX_FILES:
            return []
        sources += [(kind, path) for path in files if (kind := _kind_of(path)) is not None]
    return sources


def _kind_of(path: str) -> Source[Any] | None:
    return next((kind for kind in known_sources() if kind.fits(path)), None)


def _only_one(source: str, candidates: Sequence[SourceFile]) -> SourceFile:
    """The file to read, of several of one kind.

    Raises:
        InputError: If they are from several jobs, as far as distprof can tell.
    """
    if len(candidates) == 1:
        return candidates[0]
    kind = candidates[0][0]
    if kind is training_log.SOURCE:
        logs = [(path, training_log.SOURCE.read(path)) for _, path in candidates]
        if _same_job(logs):
            return kind, max(logs, key=lambda one: one[1].num_reports)[0]
    names = [str(Path(path).relative_to(Path(expanded(source)))) for _, path in candidates]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    raise InputError(
        source,
        expected="the files of one job",
        found=f"{len(names)} sources of one kind ({kind.origin}): "
        f"{', '.join(names[:_MAX_NAMED])}{more}",
        fix=f"name one of them: distprof analyze {candidates[0][1]}",
    )


def _same_job(logs: Sequence[tuple[str, TrainingLog]]) -> bool:
    """Whether logs report the same iterations, with the same losses or from different ranks.

    If the ranks print no loss, names such as ``rank3.log`` must show that they are ranks.
    """
    ranks = {rank_in_name(path) for path, _ in logs} - {None}
    are_ranks = len(ranks) == len(logs)
    _, first = logs[0]
    return all(_agree(first, other, are_ranks=are_ranks) for _, other in logs[1:])


def _agree(one: TrainingLog, other: TrainingLog, *, are_ranks: bool) -> bool:
    """Whether two logs share iterations and agree on every loss in them."""
    common, here, there = np.intersect1d(one.iteration, other.iteration, return_indices=True)
    losses = one.loss[here], other.loss[there]
    known = ~np.isnan(losses[0]) & ~np.isnan(losses[1])
    if not len(common) or one.origin != other.origin:
        return False
    if not known.any():
        return are_ranks
    return bool(np.allclose(losses[0][known], losses[1][known], rtol=1e-4))


def _with_note(run: Run, path: str, num_others: int) -> Run:
    """The run with a note if further files report the same iterations."""
    if not num_others:
        return run
    message = f"{num_others} more logs report the same iterations: distprof reads {path}."
    return replace(run, gaps=(*run.gaps, Gap(what="assumed", message=message)))
