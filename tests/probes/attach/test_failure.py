"""How a captured job ended, from what each capture saw."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from distprof_probes.attach.failure import Watch, outcome_of, rank_ends
from distprof_probes.attach.launch import Ending
from distprof_probes.job.evidence import RankEvidence

from distprof.artefacts.run_file import Exit

FINE = Ending(exit=Exit(code=0, ended_ns=9))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "rank00000").mkdir()
    return tmp_path


def test_a_rank_that_failed_after_the_first_had_ended_fails_the_job(run_dir: Path) -> None:
    told = [RankEvidence(rank=1, exit=Exit(code=3, ended_ns=9), last_step=4)]
    evidence = rank_ends(run_dir, FINE, Watch(run_dir), own=0, told=told)
    outcome, failure = outcome_of(FINE, evidence)
    assert outcome == "failed"
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "exited")


def test_a_job_that_was_ended_from_outside_blames_nobody(run_dir: Path) -> None:
    """As by scancel: each capture passes SIGTERM on to its own rank."""
    ended = Ending(exit=Exit(signal="SIGTERM", ended_ns=9), signals=(signal.SIGTERM,))
    told = [RankEvidence(rank=1, exit=Exit(signal="SIGTERM", by_launcher=True), told_to_end_ns=8)]
    evidence = rank_ends(run_dir, ended, Watch(run_dir), own=0, told=told)
    assert evidence[0].exit == Exit(signal="SIGTERM", ended_ns=9, by_launcher=True)
    assert outcome_of(ended, evidence) == ("interrupted", None)


def test_a_rank_that_vanished_while_the_memory_killer_struck_ran_out_of_memory() -> None:
    program = Ending(exit=Exit(code=1, ended_ns=9))
    for struck, kind in (("", "killed"), ("group", "out_of_memory"), ("machine", "out_of_memory")):
        gone = RankEvidence(rank=1, alive_until_ns=5, struck_by=struck)  # type: ignore[arg-type]
        failure = outcome_of(program, [RankEvidence(rank=0), gone])[1]
        assert failure is not None
        assert (failure.rank, failure.kind) == (1, kind)
