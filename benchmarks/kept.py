"""Results of a long campaign, one per line of a file, so that an ended call can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

__all__ = ["Kept"]

T = TypeVar("T", bound=msgspec.Struct)


class Kept(Generic[T]):
    """The results so far; each is written when it is added.

    Args:
        file: The file that keeps them; None for this call only.
        kind: Type of the results.
    """

    def __init__(self, file: Path | None, kind: type[T]) -> None:
        self._file = file
        lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
        self.results = [msgspec.json.decode(line, type=kind) for line in lines]

    def add(self, result: T) -> None:
        """Add and write one result."""
        self.results.append(result)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
