"""Which ranks the step log alone shows to be late: hand-made logs with known answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.api import analyze
from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import Pause, Phase, StepRecord
from distprof.sections.step_log.stalls import FEWEST_STEPS, find_late_ranks
from tests.job_folders import MS, START_NS, JobFolder

STEP_MS = 40
NUM_STEPS = 1 + FEWEST_STEPS  # the first one initialises


def job_of(tmp_path, *cpu_ms, queue_ms=0.0, input_ms=(), stages=1, steps=NUM_STEPS, **fields):
    """A job without traces; each rank computes so long in every step."""
    mesh = {"pp": stages, "dp_replicate": len(cpu_ms) // stages}
    folder = JobFolder(tmp_path / "run", mesh=mesh, **fields)
    waits = dict(enumerate(input_ms))
    for rank, ms in enumerate(cpu_ms):
        stage = rank // (len(cpu_ms) // stages)
        entry = replace(folder.entries[rank], coordinates={"pp": stage} if stages > 1 else {})
        folder.entries[rank] = entry
        folder.lines(rank, STEPS_FILE, records(steps, ms, queue_ms, waits.get(rank, 0.0)))
        folder.pauses(rank, Pause(kind="gc", start_ns=START_NS, end_ns=START_NS + MS))
    return folder


def records(steps, cpu_ms, queue_ms, input_ms):
    start = [START_NS + step * STEP_MS * MS for step in range(steps)]
    return [
        StepRecord(
            step=step,
            start_ns=at,
            end_ns=at + STEP_MS * MS,
            cpu_ns=round(cpu_ms * MS),
            run_queue_ns=round(queue_ms * MS),
            phases=(Phase("input", at, at + round(input_ms * MS)),),
        )
        for step, at in enumerate(start)
    ]


def found(folder):
    """Ranks that are named, what it costs, and the message."""
    report = analyze(str(folder.write()))
    (finding,) = [one for one in report.findings if one.code == "STR112"] or [None]
    if finding is None:
        return (), 0, ""
    return finding.ranks, finding.cost_ns_per_step / MS, f"{finding.headline}. {finding.message}"


def test_a_rank_that_computes_longer_is_named_with_what_a_step_loses_to_it(tmp_path):
    """Its peers' median is 10 ms; the slowest of them takes 10.8: a step would take 3.2 ms less."""
    ranks, cost_ms, message = found(job_of(tmp_path, 10, 14, 9, 10.8))
    assert (ranks, cost_ms) == ((1,), 3.2)
    assert message.startswith("Rank 1 computes 40.0 % longer in each step than its peers. 4.00 ms ")
    assert "3.20 ms less (8.00 %)" in message


def test_a_few_late_ranks_are_named_together(tmp_path):
    ranks, cost_ms, message = found(job_of(tmp_path, 10, 13, 10, 10, 14, 10))
    assert (ranks, cost_ms) == ((1, 4), 4.0)
    assert message.startswith("Ranks 1,4 compute up to ")


def test_most_ranks_cannot_be_late(tmp_path):
    assert found(job_of(tmp_path, 14, 14, 10))[0] == ()


def test_equal_ranks_are_left_alone(tmp_path):
    assert found(job_of(tmp_path, 10, 10.4, 10.2, 9.9))[0] == ()


def test_stages_of_a_pipeline_are_compared_with_their_own_kind(tmp_path):
    """The second stage computes twice as long, by design; one of its ranks longer than that."""
    assert found(job_of(tmp_path / "a", 10, 10, 10, 20, 20, 20, stages=2))[0] == ()
    assert found(job_of(tmp_path / "b", 10, 10, 10, 20, 20, 24, stages=2))[0] == (5,)


def test_one_rank_to_a_stage_has_no_peer(tmp_path):
    assert found(job_of(tmp_path, 10, 20, stages=2))[0] == ()


def test_a_few_steps_prove_nothing(tmp_path):
    assert found(job_of(tmp_path, 10, 14, steps=NUM_STEPS - 1))[0] == ()


def test_a_cpu_that_runs_ahead_of_its_gpu_delays_nothing(tmp_path):
    folder = job_of(tmp_path, 10, 14)
    folder.entries = {r: replace(entry, device="cuda:0") for r, entry in folder.entries.items()}
    assert found(folder)[0] == ()


def test_on_a_busy_machine_more_is_asked_for(tmp_path):
    assert found(job_of(tmp_path / "a", 10, 12))[0] == (1,)
    assert found(job_of(tmp_path / "b", 10, 12, queue_ms=8))[0] == ()
    assert found(job_of(tmp_path / "c", 10, 14, queue_ms=8))[0] == ()
    assert found(job_of(tmp_path / "d", 10, 16, queue_ms=8))[0] == (1,)


def test_what_is_computed_for_the_input_belongs_to_the_rule_on_input(tmp_path):
    assert found(job_of(tmp_path, 10, 14, input_ms=(0.0, 4.0)))[0] == ()


def test_a_step_that_a_rank_lacks_is_compared_with_none():
    """Rank 1 has the odd steps only, and repeated one after a restart: its last record counts."""
    steps = [np.arange(60), np.append(np.arange(1, 60, 2), 1)]
    cpu = [np.full(60, 10 * MS), np.append(np.full(30, 15 * MS), 15 * MS)]
    (late,) = find_late_ranks((4, 7), steps, cpu, [(0, 1)])
    assert (late.rank, late.num_steps, late.late_ns, late.gained_ns) == (7, 30, 5 * MS, 5 * MS)
    assert late.late_ratio == late.often_ratio == pytest.approx(0.5)


def test_single_long_steps_make_nobody_late():
    slow = np.full(60, 10 * MS)
    slow[::3] = 50 * MS  # a third of the steps
    assert (
        find_late_ranks((0, 1), [np.arange(60)] * 2, [np.full(60, 10 * MS), slow], [(0, 1)]) == ()
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(3, 12),
    excess=st.floats(0.2, 3.0),
    noise=st.floats(0.0, 0.03),
)
def test_the_late_rank_is_found_in_noise_and_nobody_else(seed, ranks, excess, noise):
    dice = np.random.default_rng(seed)
    late = int(dice.integers(ranks))
    common = dice.uniform(5e6, 50e6, 80)  # what slows all ranks at once
    cpu = common * (1 + noise * dice.standard_normal((ranks, 80)))
    cpu[late] *= 1 + excess
    (one,) = find_late_ranks(
        range(ranks), [np.arange(80)] * ranks, list(cpu.astype(np.int64)), [tuple(range(ranks))]
    )
    assert one.rank == late
    assert one.late_ratio == pytest.approx(excess, abs=0.1 * (1 + excess))
    assert 0 < one.gained_ns <= one.late_ns + 0.1 * common.max()
