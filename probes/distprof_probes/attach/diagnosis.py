"""Why a capture holds less than was hoped for, told from its diary."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.artefacts.records import DiaryLine
from distprof.artefacts.run_file import Exit

__all__ = ["notes_of", "why_nothing"]


def why_nothing(diary: Sequence[DiaryLine]) -> str:
    """Why no step was recorded, with the way out."""
    unusable = [line.detail for line in diary if line.event == "unusable"]
    if unusable:
        return f"the probes could not work in the program: {unusable[0]}"
    if any(line.event == "recording" for line in diary):
        return _started_only(diary)
    if any(line.event == "torch" for line in diary):
        return (
            "the program imported torch but built no optimizer of torch.optim, and made no process"
            " group; if it trains otherwise, mark its steps with distprof_probes.session"
        )
    if diary:
        return f"no Python of the program imported torch ({_programs(diary)})"
    return (
        "no Python of the program took the hook up: it ran none, or one with -I, -E or -S, or in a"
        " container or on a host that does not see distprof's folder and the run directory, or with"
        " another PYTHONPATH; install distprof there, and mount the run directory"
    )


def _started_only(diary: Sequence[DiaryLine]) -> str:
    if any(line.event == "closed" for line in diary):
        return "no optimizer made a step: steps are found by optimizer.step"
    return (
        "the ranks ended before they could say how many steps they made (os._exit or a signal);"
        " what was written until then is kept"
    )


def notes_of(diary: Sequence[DiaryLine], ended: Exit) -> list[str]:
    """What a reader of run.json should know, one sentence each."""
    notes = [f"The program ended with {_way(ended)}."] if ended.signal or ended.code else []
    for line in diary:
        if line.event == "passed_over":
            notes.append(f"A process (pid {line.pid}) was left alone: {line.detail}.")
        elif line.event == "unusable":
            notes.append(f"A process (pid {line.pid}) could not be recorded: {line.detail}.")
        elif line.event == "closed" and line.detail:
            notes.append(f"Rank {line.rank}: {line.detail}")
    return _few(notes)


def _few(notes: list[str], limit: int = 12) -> list[str]:
    """A few are read; of thousands of ranks that say the same, a count."""
    if len(notes) <= limit:
        return notes
    return [*notes[:limit], f"{len(notes) - limit} more notes of this kind are in capture.jsonl."]


def _way(ended: Exit) -> str:
    return ended.signal or f"exit code {ended.code}"


def _programs(diary: Sequence[DiaryLine]) -> str:
    names = list(dict.fromkeys(line.program or line.python for line in diary))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
