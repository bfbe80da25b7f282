"""GPU ranks that their collectives show to be late, in reports of simulated GPUs: known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distprof.api import analyze
from distprof.artefacts import COLLECTIVES_FILE, STEPS_FILE
from distprof.artefacts.records import CollectivesRecord, StepRecord
from distprof.documents.saved import Report
from distprof.sections.step_log.stalls import FEWEST_STEPS
from tests.job_folders import MS, START_NS, JobFolder
from tests.verbs.watch.gpu_jobs import ddp, fsdp, tensor_parallel
from tests.verbs.watch.gpu_timelines import Cluster, Program, Recorder

RANKS = 8
STEPS = 40


def trained(
    folder: Path, program: Callable[[int], Program], *, steps: int = STEPS, mute: Sequence[int] = ()
) -> JobFolder:
    """The run directory of a job on eight GPUs without traces."""
    job = JobFolder(folder / "run", mesh={"dp_replicate": RANKS})
    cluster, recorders = Cluster(RANKS), [Recorder() for _ in range(RANKS)]
    logs: list[list[StepRecord]] = [[] for _ in range(RANKS)]
    collectives: list[list[CollectivesRecord]] = [[] for _ in range(RANKS)]
    now_ms = 0.0
    for step in range(steps):
        cluster.run(program)
        end_ms = max(gpu.now_ms for gpu in cluster.gpus)
        for rank, gpu in enumerate(cluster.gpus):
            collectives[rank] += recorders[rank].step(step, gpu, end_ms - now_ms)
            start, end = (START_NS + round(ms * MS) for ms in (now_ms, end_ms))
            logs[rank].append(StepRecord(step=step, start_ns=start, end_ns=end))
        now_ms = end_ms
    for rank in range(RANKS):
        job.entries[rank] = replace(job.entries[rank], device="NVIDIA H100")
        job.lines(rank, STEPS_FILE, logs[rank])
        if rank not in mute:
            job.lines(rank, COLLECTIVES_FILE, collectives[rank])
    return job


def slow(rank: int, times: float) -> Callable[[int], float]:
    return lambda number: times if number == rank else 1.0


def named(report: Report) -> list[Any]:
    return [one for one in report.findings if one.code == "STR112"]


@pytest.mark.parametrize("buckets", [1, 4])
def test_the_rank_that_works_longer_is_named_with_both_bounds(tmp_path: Path, buckets: int) -> None:
    """It works 10 % longer than 20 + 8 ms for each bucket: 2.8 and 5.2 ms."""
    late_ms = 0.1 * (20 + 8 * buckets)
    report = analyze(str(trained(tmp_path, ddp(RANKS, slow(2, 1.1), buckets=buckets)).write()))
    (late,) = report.step_log.late_on_gpus
    assert (late.rank, late.num_steps) == (2, STEPS - 1)  # the first one initialises
    assert late.late_ns == pytest.approx(late_ms * MS, rel=0.01)
    assert late.late_most_ns >= 0.99 * late_ms * MS
    (finding,) = named(report)
    assert (finding.ranks, finding.cost_ns_per_step) == ((2,), late.late_ns)
    assert late.late_ratio == pytest.approx(0.1, rel=1e-3)
    or_more = " or more, at most 16.0 ms," if buckets == 4 else ""
    assert report.verdict.headline == "Rank 2 works 10.0 % longer up to a collective than peers"
    assert report.verdict.detail.startswith(
        f"Rank 2 arrives {late_ms:.2f} ms{or_more} late at a collective in each step (median of 39"
    )


@pytest.mark.parametrize("program", [ddp, fsdp])
def test_ranks_that_work_alike_are_not_named(tmp_path: Path, program: Any) -> None:
    report = analyze(str(trained(tmp_path, program(RANKS, slow(0, 1.0))).write()))
    assert report.step_log.late_on_gpus == ()
    assert named(report) == []


def test_a_lower_bound_that_is_too_low_names_nobody(tmp_path: Path) -> None:
    """Tensor parallelism meets twenty times in a step: each single wait is short."""
    job = trained(tmp_path, tensor_parallel(RANKS, 1, slow(3, 1.1)))
    assert named(analyze(str(job.write()))) == []


def test_without_the_times_of_one_member_nothing_is_known(tmp_path: Path) -> None:
    """All may wait for the rank without a record."""
    report = analyze(str(trained(tmp_path, ddp(RANKS, slow(2, 1.3)), mute=(5,)).write()))
    assert report.step_log.late_on_gpus == ()


def test_a_few_steps_prove_nothing(tmp_path: Path) -> None:
    job = trained(tmp_path, ddp(RANKS, slow(2, 1.3), buckets=1), steps=FEWEST_STEPS)
    assert analyze(str(job.write())).step_log.late_on_gpus == ()


@pytest.mark.parametrize(
    "damage",
    [
        '{"step":-1}',
        '{"step":30,"groups":[{"group":"dp","kind":"all","num":1,"total_ns":[1e400]}]}',
        '{"step":30,"groups":[{"group":"dp","kind":"all","num":1,"total_ns":[99999999999999999]}]}',
        '{"step":30,"groups":[{"group":"dp","kind":"all","num":-4}]}',
    ],
)
def test_absurd_records_are_skipped_and_counted(tmp_path: Path, damage: str) -> None:
    job = trained(tmp_path, ddp(RANKS, slow(2, 1.1), buckets=1))
    file = job.rank_dir(4) / COLLECTIVES_FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:31], damage, *lines[32:], ""]))
    report = analyze(str(job.write()))
    (late,) = report.step_log.late_on_gpus
    assert (late.rank, late.num_steps) == (2, STEPS - 2)
    assert any("1 damaged line in collectives.jsonl" in why for why in report.step_log.unavailable)
