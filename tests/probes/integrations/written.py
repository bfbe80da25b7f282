"""What a run under a framework has left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts.records import StepRecord


def steps(run: Path) -> list[StepRecord]:
    """All steps of rank 0."""
    _, *lines = (run / "rank00000" / "steps.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=StepRecord) for line in lines]


def names(step: StepRecord) -> list[str]:
    """Phases of a step, in order."""
    return [phase.name for phase in step.phases]


def content(file: Path) -> dict[str, Any]:
    """A JSON file."""
    found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    return found
