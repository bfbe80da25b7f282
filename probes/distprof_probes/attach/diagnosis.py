"""Explains from the diary of a capture why it recorded less than expected."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.artefacts.records import DiaryLine
from distprof.artefacts.run_file import Exit


def why_nothing(diary: Sequence[DiaryLine]) -> str:
    """Why no step was recorded, and how to fix it."""
    unusable = [line.detail for line in diary if line.event == "unusable"]
    if unusable:
        return f"the probes could not run in the program: {unusable[0]}"
    if any(line.event == "recording" for line in diary):
        return _started_only(diary)
    if any(line.event == "torch" for line in diary):
        return (
            "the program imported torch but created neither a torch.optim optimizer nor a process"
            " group; if it trains in another way, mark its steps with distprof_probes.session"
        )
    if diary:
        return f"no Python process of the program imported torch ({_programs(diary)})"
    return (
        "no Python process of the program loaded the hook: the program does not run Python, runs it"
        " with -I, -E or -S, replaces PYTHONPATH, or runs in a container or on a host without"
        " access to distprof's folder and the run directory; install distprof there, and mount the"
        " run directory"
    )


def _started_only(diary: Sequence[DiaryLine]) -> str:
    if any(line.event == "closed" for line in diary):
        return "no optimizer stepped: distprof finds steps by optimizer.step"
    return (
        "the ranks ended before they could report their number of steps (os._exit or a signal);"
        " the records written until then are kept"
    )


def notes_of(diary: Sequence[DiaryLine], ended: Exit) -> list[str]:
    """Notes for a reader of run.json, one sentence each."""
    notes = [f"The program ended with {_way(ended)}."] if ended.signal or ended.code else []
    for line in diary:
        if line.event == "passed_over":
            notes.append(f"A process (pid {line.pid}) was not recorded: {line.detail}.")
        elif line.event == "unusable":
            notes.append(f"A process (pid {line.pid}) could not be recorded: {line.detail}.")
        elif line.event == "closed" and line.detail:
            notes.append(f"Rank {line.rank}: {line.detail}")
    return _few([*notes, *_never_closed(diary)])


def _never_closed(diary: Sequence[DiaryLine]) -> list[str]:
    """A note on ranks whose last records may be missing."""
    ended = {line.rank for line in diary if line.event == "closed"}
    open_ = {line.rank for line in diary if line.event == "recording"} - ended
    ranks = sorted(rank for rank in open_ if rank is not None)
    if not ranks:
        return []
    which = f"Rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, rank {ranks[0]} first,"
    return [
        f"{which} did not close the records (os._exit, a signal, or still running): what was"
        " recorded last, and a trace that had not ended, are missing."
    ]


def _few(notes: list[str], limit: int = 12) -> list[str]:
    """The first notes, and a count of the rest: thousands of ranks may report the same."""
    if len(notes) <= limit:
        return notes
    return [*notes[:limit], f"capture.jsonl has {len(notes) - limit} more notes of this kind."]


def _way(ended: Exit) -> str:
    return ended.signal or f"exit code {ended.code}"


def _programs(diary: Sequence[DiaryLine]) -> str:
    names = list(dict.fromkeys(line.program or line.python for line in diary))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
