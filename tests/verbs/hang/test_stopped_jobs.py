"""Step logs, exits and the age of stacks, where the dumps of a hung job show nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from distprof.artefacts.records import StepRecord
from distprof.artefacts.run_file import Exit, Outcome, RankEntry, RunFile
from distprof.units import NS_PER_S
from distprof.verbs.hang import HangReport, HangState
from distprof.verbs.hang.evidence import read_evidence
from distprof.verbs.hang.measure import diagnose
from tests.flight_jobs import START_NS, dump, op
from tests.verbs.hang.test_hang_files import STACKS

STEP_NS = NS_PER_S // 10
NUM_STEPS = 40
LAST_NS = START_NS + NUM_STEPS * STEP_NS


def written(file: Path, text: str, at_ns: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(at_ns, at_ns))


def steps() -> str:
    """A log of steps of 0.1 s, the last of them cut while it was written."""
    records = [
        StepRecord(
            step=step, start_ns=START_NS + step * STEP_NS, end_ns=START_NS + (step + 1) * STEP_NS
        )
        for step in range(NUM_STEPS)
    ]
    lines = ['{"schema":"distprof.steps/1","rank":0}', *map(_text, records), '{"step":40,"sta']
    return "\n".join(lines)


def _text(record: StepRecord) -> str:
    return msgspec.json.encode(record).decode()


def job(
    folder: Path,
    *,
    dumps_s: float,
    stacks_s: float | None = None,
    copied: bool = False,
    outcome: Outcome = "interrupted",
    exits: dict[int, Exit] | None = None,
) -> HangReport:
    """Two ranks whose recorders are empty, as with gloo's messages; ages from the last step on."""
    entries = tuple(RankEntry(rank=r, exit=(exits or {}).get(r)) for r in range(2))
    run = RunFile(distprof_version="0", kind="capture", command=(), started_ns=START_NS,
                  world_size=2, outcome=outcome, ranks=entries)  # fmt: skip
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    for rank in range(2):
        place = folder / f"rank{rank:05d}"
        place.mkdir()
        later = LAST_NS + round(dumps_s * NS_PER_S)
        written(place / "steps.jsonl", steps(), later if copied else LAST_NS)
        written(place / "flight.json", json.dumps(dump([op(1)], {"0": [0, 1]})), later)
        if stacks_s is not None:
            at_ns = LAST_NS + round(stacks_s * NS_PER_S)
            written(place / "stacks.txt", STACKS, at_ns)
    return diagnose(read_evidence(str(folder)), version="0")


def test_a_job_whose_steps_have_stopped_hangs_though_the_dumps_show_nothing(
    tmp_path: Path,
) -> None:
    found = job(tmp_path, dumps_s=95, stacks_s=95)
    assert found.state is HangState.STUCK
    assert found.verdict.startswith(
        "Stuck: no step has completed for 95.0 s after step 39. Steps usually took"
    )
    assert found.why == ("Ranks 0-1 are in average (train.py:40).",)
    assert found.operation is None


@pytest.mark.parametrize("dumps_s", [-2, 0.5, 25])
def test_dumps_soon_after_a_step_show_no_hang(tmp_path: Path, dumps_s: float) -> None:
    assert job(tmp_path, dumps_s=dumps_s).state is HangState.NO_HANG


def test_times_of_copied_files_prove_nothing(tmp_path: Path) -> None:
    assert job(tmp_path, dumps_s=95, copied=True).state is HangState.NO_HANG


def test_a_job_that_completed_does_not_hang(tmp_path: Path) -> None:
    assert job(tmp_path, dumps_s=95, outcome="completed").state is HangState.NO_HANG


def test_stacks_from_before_a_later_step_are_not_used(tmp_path: Path) -> None:
    found = job(tmp_path, dumps_s=95, stacks_s=-1)
    assert found.stacks == ()
    assert any("The stacks of ranks 0-1 were taken before" in note for note in found.notes)


def test_the_end_that_a_launcher_saw_shows_the_stop_too(tmp_path: Path) -> None:
    ends = {
        rank: Exit(signal="SIGTERM", by_launcher=True, ended_ns=LAST_NS + 200 * NS_PER_S)
        for rank in range(2)
    }
    found = job(tmp_path, dumps_s=-1, exits=ends)
    assert found.state is HangState.STUCK
    assert "no step has completed for 200 s" in found.verdict
    assert any("The dumps of ranks 0-1 were written before" in note for note in found.notes)


def test_a_rank_that_exited_while_the_other_went_on_is_named(tmp_path: Path) -> None:
    ends = {1: Exit(code=0, ended_ns=LAST_NS)}
    found = job(tmp_path, dumps_s=95, exits=ends)
    assert "Rank 1: its process exited with code 0." in found.verdict
