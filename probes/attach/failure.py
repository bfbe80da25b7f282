"""How a captured job ended, by what its ranks left behind."""

from __future__ import annotations

import re
from pathlib import Path

from distprof.artefacts.run_file import Failure, Outcome
from probes.attach.launch import Ending
from probes.job.evidence import RankEvidence, rank_evidence
from probes.job.failure import first_cause

__all__ = ["outcome_of"]

_RANK_DIR = re.compile(r"^rank(\d+)$")


def outcome_of(run_dir: Path, ending: Ending) -> tuple[Outcome, Failure | None]:
    """The outcome, and the first cause where the job failed.

    The ranks are no children of ours: their exit codes are unknown, and what they wrote has to do.

    Args:
        run_dir: The run directory.
        ending: How the program ended.
    """
    if ending.exit.code == 0:
        return "completed", None
    failure = first_cause(_evidence(run_dir), is_interrupted=ending.was_interrupted)
    return ("interrupted" if ending.was_interrupted else "failed"), failure


def _evidence(run_dir: Path) -> list[RankEvidence]:
    folders = (_RANK_DIR.match(folder.name) for folder in run_dir.iterdir())
    return [rank_evidence(run_dir, int(match[1])) for match in folders if match]
