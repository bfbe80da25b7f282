"""Jobs with more collectives than are compared at once: their last steps are analysed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import distprof
from distprof.ingest.assemble import RecentTables, recent_part
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.run.run import RECENT_STEPS
from distprof.terms import CollectiveKind
from tests.simulator import Collective, Compute, Exchange, SimulatedJob, SlowDevice

MS = 1_000_000
NUM_STEPS = 12
HYBRID = SimulatedJob(
    num_steps=NUM_STEPS,
    axes={"pp": ((0, 2), (1, 3)), "tp": ((0, 1), (2, 3))},
    program=(
        Compute(ns=MS),
        Exchange(axis="pp", src=0, dst=1),
        Collective(axis="tp", kind=CollectiveKind.ALL_GATHER, bytes=1 << 20),
        Compute(ns=MS),
        Collective(),
    ),
    clock_offset_ns=(0, -3 * MS),
)
SLOW = SimulatedJob(num_steps=NUM_STEPS, faults=(SlowDevice(rank=2, factor=1.5),))
JOBS = {"hybrid": HYBRID, "slow rank": SLOW}


@pytest.fixture(params=JOBS)
def job(request):
    return JOBS[request.param]


def written(job, folder, **how):
    job.run().write_kineto(folder / "traces", **{"with_seq": True, **how})
    return str(folder / "traces")


def opened(source, most, **how):
    options = IngestOptions(use_cache=False)
    return open_run(source, options=options, max_collectives=most, **{"executor": "serial", **how})


def first_steps(run):
    return {int(rank.steps["step"][0]) for rank in run}


@pytest.mark.parametrize("with_seq", [True, False])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.0])
def test_every_rank_begins_with_the_same_step_and_matches_from_there(
    job, share, with_seq, tmp_path
):
    source = written(job, tmp_path, with_seq=with_seq)
    whole = opened(source, None)
    total = sum(len(rank.collectives) for rank in whole)
    most = max(1, int(share * total))
    run = opened(source, most)
    (first,) = first_steps(run)
    assert first > job.first_step
    for rank, all_of_it in zip(run, whole, strict=True):
        since = rank.steps["start_ns"][0]
        assert rank.steps["step"].tolist() == list(range(first, job.first_step + NUM_STEPS))
        kept = all_of_it.collectives["start_ns"] >= since
        np.testing.assert_array_equal(
            rank.collectives["start_ns"], all_of_it.collectives["start_ns"][kept]
        )
    is_one_step = first == job.first_step + NUM_STEPS - 1
    assert is_one_step or sum(len(rank.collectives) for rank in run) <= most
    assert run.matches.matched_ratio == 1.0
    (gap,) = [gap for gap in run.gaps if gap.what == RECENT_STEPS]
    assert f"{total:,} collectives" in gap.message
    assert f"of {NUM_STEPS} steps" in gap.message


def test_the_steps_that_are_left_are_analysed_as_in_the_whole_job(job, tmp_path):
    source = written(job, tmp_path)
    whole = opened(source, None)
    most = sum(len(rank.collectives) for rank in whole) // 2
    expected, found = distprof.analyze(whole), distprof.analyze(opened(source, most))
    number = found.step_time.num_steps
    assert 1 < number < NUM_STEPS
    assert found.capture.steps == expected.capture.steps[-number:]
    assert found.capture.matched_ratio == 1.0
    assert found.step_time.median_ns == pytest.approx(expected.step_time.median_ns, rel=0.05)
    (first, *_), (as_before, *_) = found.findings, expected.findings
    assert (first.code, first.ranks) == (as_before.code, as_before.ranks)


def test_reports_are_the_same_however_the_ranks_are_read(tmp_path):
    source = written(HYBRID, tmp_path)
    cached = IngestOptions(cache_dir=str(tmp_path / "cache"))
    reports = [
        msgspec.json.encode(
            distprof.analyze(
                open_run(source, options=options, executor=executor, max_collectives=60),
                executor=executor,
            )
        )
        for options, executor in (
            (IngestOptions(use_cache=False), "serial"),
            (cached, "process:2"),
            (cached, "process:2"),  # from the cache
            (cached, "serial"),
        )
    ]
    assert len(set(reports)) == 1


def test_a_rank_sent_to_another_machine_reads_the_same_rows(tmp_path):
    cached = IngestOptions(cache_dir=str(tmp_path / "cache"))
    run = open_run(written(HYBRID, tmp_path), options=cached, max_collectives=60)
    for rank in run:
        sent = rank.light().tables
        assert isinstance(sent, RecentTables)
        assert sent.collectives is None
        tables, others = rank.tables.load(), sent.load()
        for column in ("start_ns", "kind", "seq"):
            np.testing.assert_array_equal(tables.collectives[column], others.collectives[column])
        assert (others.activity["start_ns"] >= rank.capture_start_ns).all()
        assert (others.host["start_ns"] >= rank.capture_start_ns).all()
        assert sent.path == rank.tables.path
        assert Path(sent.path).is_file()


def test_a_job_within_the_limit_is_whole(tmp_path):
    source = written(SLOW, tmp_path)
    total = sum(len(rank.collectives) for rank in opened(source, None))
    run = opened(source, total)
    assert not any(isinstance(rank.tables, RecentTables) for rank in run)
    assert not any(gap.what == RECENT_STEPS for gap in run.gaps)


def test_a_recording_without_steps_stays_whole(tmp_path):
    (rank, *_) = opened(written(SLOW, tmp_path), None)
    one = rank.steps.take(slice(0, 1))
    assert recent_part(replace(rank, steps=one), 1).collectives is rank.collectives
