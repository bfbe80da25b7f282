"""The job as a report tells it."""

import pytest

from distprof.artefacts.run_file import Exit, Failure, Fault, Overhead, ProbeStatus
from distprof.ingest.assemble import assemble_run
from distprof.ingest.job import open_run_directory
from distprof.sections.job import NO_RUN_DIRECTORY
from distprof.sections.job.measure import analyze_job
from tests.builders import RankBuilder, make_run
from tests.job_folders import MS, START_NS, JobFolder


@pytest.fixture
def job(tmp_path):
    return JobFolder(tmp_path / "run", mesh={"dp_replicate": 4})


def told(job):
    return analyze_job(assemble_run("x", (), (), open_run_directory(str(job.write()))))


def test_a_completed_job(job):
    job.fields["faults"] = (Fault(kind="slow-rank", target=3, amount=1.2, text="slow-rank=3:1.2"),)
    found = told(job)
    assert (found.kind, found.workload, found.strategy) == ("run", "ddp", "DDP")
    assert (found.outcome, found.duration_ns, found.failure) == ("completed", 1_000 * MS, None)
    assert [fault.text for fault in found.faults] == ["slow-rank=3:1.2"]


def test_the_first_cause_and_how_ranks_ended(job):
    job.fields |= {
        "outcome": "failed",
        "failure": Failure(
            rank=2,
            kind="killed",
            message="rank 2 was killed (SIGKILL) after step 14",
            step=14,
            detected_ns=START_NS + 500 * MS,
        ),
    }
    for rank in (0, 1, 3):
        job.rank(rank, exit=Exit(code=1, by_launcher=rank == 3))
    job.rank(2, exit=Exit(signal="SIGKILL"))
    job.error(1, "closed", is_peer_loss=True, time_ns=START_NS).error(0, "boom", step=3)
    found = told(job)
    assert (found.failure.rank, found.failure.after_ns) == (2, 500 * MS)
    assert [(e.ranks, e.code, e.signal, e.by_launcher) for e in found.exits] == [
        ((0, 1), 1, "", False),
        ((2,), None, "SIGKILL", False),
        ((3,), 1, "", True),
    ]
    assert [(error.rank, error.is_peer_loss) for error in found.errors] == [(0, False), (1, True)]


def test_probes_that_did_the_same_are_one_row(job):
    for rank in range(4):
        state = "failed" if rank == 3 else "on"
        probe = ProbeStatus(name="memory", state=state, num_records=10, num_dropped=rank)
        job.rank(rank, probes=(probe,))
    assert [(p.state, p.ranks, p.num_records, p.num_dropped) for p in told(job).probes] == [
        ("on", (0, 1, 2), 30, 3),
        ("failed", (3,), 10, 3),
    ]


def test_overhead_is_that_of_the_median_rank(job):
    for rank, ratio in enumerate((0.01, 0.02, 0.9)):
        measured = Overhead(
            mode="tracing",
            method="m",
            ratio=ratio,
            low=ratio / 2,
            high=2 * ratio,
            num_pairs=6 + rank,
            step_ns=10 * MS,
        )
        job.rank(rank, overhead=(measured,))
    (found,) = told(job).overhead
    assert (found.ratio, found.low, found.high) == (0.02, 0.01, 0.04)
    assert (found.num_pairs, found.ranks) == (6, (0, 1, 2))


def test_why_something_was_not_measured_is_told_with_the_ranks_that_say_so(job):
    for rank, note in enumerate(("steps vary", "steps vary", "too few pairs")):
        job.rank(rank, notes=(note,))
    assert told(job).probe_notes == ("ranks 0-1: steps vary", "rank 2: too few pairs")


def test_an_end_that_nobody_saw_is_said(job):
    job.fields |= {"outcome": "running", "ended_ns": None}
    found = told(job)
    assert found.duration_ns is None
    assert "launcher was killed" in found.notes[-1]


def test_bare_traces_are_no_job():
    found = analyze_job(make_run([RankBuilder(0).rank()]))
    assert (found.kind, found.outcome, found.unavailable) == (None, None, (NO_RUN_DIRECTORY,))
