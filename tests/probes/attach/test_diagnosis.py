"""Why nothing was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from distprof_probes.attach.diagnosis import notes_of, why_nothing

from distprof.artefacts.records import DiaryLine
from distprof.artefacts.run_file import Exit


def _line(event: Any, **about: Any) -> DiaryLine:
    return DiaryLine(event=event, t_ns=0, pid=7, **about)


PYTHON = _line("python", program="train.py")


@pytest.mark.parametrize(
    ("diary", "expected"),
    [
        ([], "no Python process of the program loaded the hook"),
        ([PYTHON], "imported torch (train.py)"),
        ([PYTHON, _line("torch")], "created neither a torch.optim optimizer"),
        ([PYTHON, _line("torch"), _line("unusable", detail="No module named 'x'")], "named 'x'"),
        ([PYTHON, _line("recording", rank=0)], "os._exit"),
        (
            [_line("recording", rank=0), _line("closed", rank=0, steps=0)],
            "no optimizer stepped",
        ),
    ],
)
def test_the_reason_is_told(diary: list[DiaryLine], expected: str) -> None:
    assert expected in why_nothing(diary)


def test_notes_name_the_exit_and_the_processes_left_alone() -> None:
    diary = [
        _line("passed_over", detail="another process is already recorded as rank 0"),
        _line("closed", rank=1, steps=4, detail="Also seen: 4 steps of SGD."),
    ]
    assert notes_of(diary, Exit(code=3)) == [
        "The program ended with exit code 3.",
        "A process (pid 7) was not recorded: another process is already recorded as rank 0.",
        "Rank 1: Also seen: 4 steps of SGD.",
    ]


def test_thousands_of_notes_become_a_few_and_a_count() -> None:
    diary = [_line("closed", rank=rank, steps=1, detail=f"x {rank}") for rank in range(5000)]
    notes = notes_of(diary, Exit(code=0))
    assert len(notes) == 13
    assert notes[-1].startswith("capture.jsonl has 4988 more")


def test_ranks_that_left_without_closing_are_noted() -> None:
    diary = [_line("recording", rank=rank) for rank in range(4)]
    diary += [_line("closed", rank=rank, steps=4) for rank in (0, 2)]
    (note,) = notes_of(diary, Exit(code=0))
    assert note.startswith("2 ranks, rank 1 first, did not close the records (os._exit")
    (note,) = notes_of(diary[:1], Exit(code=0))
    assert note.startswith("Rank 0 did not close")
    assert notes_of([*diary[:1], *diary[4:5]], Exit(code=0)) == []
