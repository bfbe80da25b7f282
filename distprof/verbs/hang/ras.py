"""Reads ncclras output in the folder of a hung job: NCCL's own view of the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from distprof.artefacts.record import TroubledRank
from distprof.errors import InputError
from distprof.ingest.kinds.nccl import fits_nccl_ras, read_nccl_ras
from distprof.join.nccl import in_trouble
from distprof.verbs.hang.result import LogLine

NAME = re.compile(r"ras[^/]*\.(?:txt|json|log|out)$")
"""File names that may hold ncclras output."""

MAX_LINES = 50
_DEAD = "NCCL considers its process dead"


def lines_of_ras(files: Iterable[tuple[str, str]]) -> tuple[list[LogLine], list[str]]:
    """Lines about ranks in trouble, and notes on files that cannot be read.

    Args:
        files: Path and name in reports of each file that may hold ncclras output.
    """
    lines: list[LogLine] = []
    notes: list[str] = []
    for path, shown in files:
        if not fits_nccl_ras(path):
            continue
        try:
            status = read_nccl_ras(path)
        except InputError as error:
            notes.append(f"{shown} cannot be read: {error.found}.")
            continue
        lines += _lines(shown, in_trouble(status))
    return lines, notes


def dead_ranks(lines: Iterable[LogLine]) -> dict[int, str]:
    """Ranks whose process NCCL considers dead, and why."""
    return {
        line.rank: _DEAD
        for line in lines
        if line.about == "ras" and line.rank is not None and line.text.startswith("dead")
    }


def _lines(shown: str, troubled: Iterable[TroubledRank]) -> Iterator[LogLine]:
    for number, rank in enumerate(troubled, 1):
        if number > MAX_LINES:
            return
        what = f": {rank.text}" if rank.text else ""
        where = f" ({rank.place})" if rank.place else ""
        yield LogLine(
            rank=rank.rank, file=shown, line=number, about="ras", text=f"{rank.kind}{what}{where}"
        )
