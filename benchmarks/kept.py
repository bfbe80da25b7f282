"""Results of a long campaign, a line of a file each: a call that was ended can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

__all__ = ["Kept"]

T = TypeVar("T", bound=msgspec.Struct)


class Kept(Generic[T]):
    """The results so far; each is written when it is added.

    Args:
        file: Where they are kept; None for this call only.
        kind: What they are.
    """

    def __init__(self, file: Path | None, kind: type[T]) -> None:
        self._file = file
        lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
        self.results = [msgspec.json.decode(line, type=kind) for line in lines]

    def add(self, result: T) -> None:
        """Keep one."""
        self.results.append(result)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
