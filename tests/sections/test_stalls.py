"""Long steps at equal distances are found; long steps anywhere are not."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.api import analyze
from distprof.artefacts.run_file import RankEntry, RunFile
from distprof.ingest.job.rank_folder import RankFolder
from distprof.rules.engine import run_rules
from distprof.sections.idle import CpuPause, IdleResult
from distprof.sections.step_log import StepLogResult
from distprof.sections.step_log.measure import combine_step_logs, measure_step_log
from distprof.sections.step_log.stalls import find_periodic_stalls, find_waits
from tests.job_folders import MS, JobFolder
from tests.rules.samples import changed, healthy


def steps(num_steps, long=(), longer=300, *, usual=100, jitter=(0, 1, 2, 1)):
    """Steps of 100 to 102 ms, those of ``long`` so much longer."""
    step = np.arange(num_steps)
    duration = usual + np.resize(jitter, num_steps)
    duration[list(long)] += longer
    return step, duration.astype(np.int64) * MS


def test_a_checkpoint_every_ten_steps_by_hand():
    """9, 19, … 59 take 300 ms longer than 101: 1.8 s over 60 steps are 30 ms a step."""
    (stall,) = find_periodic_stalls(*steps(60, range(9, 60, 10)))
    assert (stall.period, stall.first_step, stall.num_stalls, stall.num_due) == (10, 9, 6, 6)
    assert stall.longer_ns == pytest.approx(300 * MS, abs=MS)
    assert stall.cost_ns_per_step == pytest.approx(30 * MS, abs=MS // 10)


def logged(
    num_steps: int,
    *,
    gpu_ms: Any = 50,
    cpu_ms: float = 5,
    ahead: int = 5,
    sync: int = 10,
    save: int = 0,
    save_ms: float = 0,
) -> tuple[Any, Any]:
    """Steps as a CPU sees them that launches at most ``ahead`` steps before its GPU does them.

    The GPU begins a step with the first launch. The CPU waits for it every ``sync`` steps, and
    stops training every ``save`` steps.
    """
    now = 0.0
    durations: list[float] = []
    ends: list[float] = []
    gpu_ms = np.broadcast_to(gpu_ms, num_steps)
    for step in range(num_steps):
        begin = now
        if step >= ahead:
            now = max(now, ends[step - ahead])
        starts = max(now, ends[-1] if ends else 0.0)
        now += cpu_ms
        ends.append(max(starts + gpu_ms[step], now))
        if step % sync == sync - 1 or (save and step % save == save - 1):
            now = max(now, ends[-1])
        if save and step % save == save - 1:
            now += save_ms
        durations.append(now - begin)
    return np.arange(num_steps), (np.array(durations) * MS).astype(np.int64)


@pytest.mark.parametrize("first", [0, 1, 5, 9])
def test_a_cpu_that_waits_for_the_work_it_launched_before_does_not_stall(first):
    """3 × 5 + 40 + 5 × 50 + 195 ms: the GPU takes 50 ms for each of the ten."""
    step, duration = logged(200, ahead=3)
    assert sorted(set(duration // MS)) == [5, 40, 50, 195]
    assert find_periodic_stalls(step[first:], duration[first:], has_gpus=True) == ()
    assert [stall.period for stall in find_periodic_stalls(step, duration)] == [10]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.sampled_from((5, 10, 20, 50)),
    st.floats(0, 0.05),
)
def test_nor_does_one_whose_steps_vary_or_whose_queue_never_fills(seed, ahead, sync, noise):
    rng = np.random.default_rng(seed)
    gpu_ms = 50 * rng.lognormal(0, noise, 300)
    step, duration = logged(300, ahead=ahead, sync=sync, gpu_ms=gpu_ms)
    found = find_periodic_stalls(step, duration, has_gpus=True)
    assert all(stall.may_wait_for_gpu for stall in found)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 400)), min_size=1, max_size=120),
    st.sampled_from((1, 10, 2**50)),
)
def test_any_log_has_an_answer(steps, scale):
    """Steps may be missing, of no length, and absurdly long; warnings are errors here."""
    apart, lengths = zip(*steps, strict=True)
    step, duration = np.cumsum(apart), np.array(lengths, dtype=np.int64) * scale
    found = find_periodic_stalls(step, duration, has_gpus=True)
    assert all(0 <= stall.num_stalls <= stall.num_due for stall in found)
    assert find_waits(step, duration) is None or find_waits(step, duration) >= 3


@given(st.integers(0, 2**32 - 1))
def test_periodic_logs_with_missing_steps_have_an_answer(seed):
    rng = np.random.default_rng(seed)
    step, duration = logged(200, ahead=int(rng.integers(1, 6)), sync=int(rng.integers(3, 12)))
    kept = rng.random(200) > rng.choice((0.05, 0.3, 0.6))
    for stall in find_periodic_stalls(step[kept], duration[kept], has_gpus=True):
        assert stall.cost_ns_per_step >= 0


def test_steps_that_are_left_out_do_not_hide_their_lead():
    step, duration = logged(400, ahead=3, save=40, save_ms=700)
    kept = (step < 122) | (step > 135)
    (stall,) = find_periodic_stalls(step[kept], duration[kept], has_gpus=True)
    assert (stall.period, stall.num_stalls) == (40, 10)
    assert stall.longer_ns == pytest.approx(700 * MS, rel=0.01)


def test_where_each_step_waits_for_its_gpu_a_long_one_stalls():
    """Without traces that is unknown, unless the stall is longer than any queue."""
    step, duration = logged(200, sync=1, save=40, save_ms=700)
    (stall,) = find_periodic_stalls(step, duration, has_gpus=True)
    assert (stall.period, stall.may_wait_for_gpu) == (40, True)
    (long,) = find_periodic_stalls(*logged(200, sync=1, save=40, save_ms=9_000), has_gpus=True)
    assert not long.may_wait_for_gpu
    results = changed(healthy(), StepLogResult, stalls=(stall,))
    waits = CpuPause(
        kind="sync",
        caller="",
        name="cudaStreamSynchronize",
        ranks=(0,),
        count_per_step=1.0,
        cpu_ns_per_step=45 * MS,
        idle_ns_per_step=MS,
    )
    results = changed(results, IdleResult, pauses=(waits,))
    (finding,) = [one for one in run_rules(results.values()).findings if one.code == "HST105"]
    assert finding.cost_ns_per_step == pytest.approx(700 * MS / 40, rel=0.01)


def test_a_checkpoint_costs_its_own_time_without_the_wait_for_launched_work():
    step, duration = logged(400, ahead=3, save=40, save_ms=700)
    (stall,) = find_periodic_stalls(step, duration, has_gpus=True)
    assert (stall.period, stall.first_step, stall.may_wait_for_gpu) == (40, 39, False)
    assert stall.cost_ns_per_step == pytest.approx(700 * MS / 40, rel=0.01)


def test_where_the_whole_interval_fits_the_queue_a_stall_and_a_wait_look_alike(tmp_path):
    step, duration = logged(200, ahead=100)
    (stall,) = find_periodic_stalls(step, duration, has_gpus=True)
    assert stall.may_wait_for_gpu
    job = JobFolder(tmp_path / "run", mesh={"dp": 1})
    job.steps(0, [5] * 3 + ([5] * 9 + [455]) * 6)
    on_gpu = RunFile(
        distprof_version="0.1.0",
        kind="session",
        command=(),
        started_ns=0,
        ranks=(RankEntry(rank=0, device="NVIDIA H100"),),
    )
    log = combine_step_logs([log_of(job, 0)], job=on_gpu)
    assert log.median_ns == 5 * MS
    assert log.step_ns == 50 * MS
    assert set(log.samples_ns) == {50 * MS}
    results = changed(healthy(), StepLogResult, stalls=(stall,))
    results = changed(results, IdleResult, pauses=())
    (finding,) = run_rules(results.values()).findings
    assert (finding.code, finding.cost_ns_per_step) == ("HST105", None)
    assert "only waits in it" in finding.message
    assert "--start-step 10 --steps 10" in finding.fix


def test_most_steps_may_be_too_short_for_the_pace_of_the_gpu(tmp_path):
    """Six steps of 2 ms, one of 38, two of 50 and a wait of 350, on each rank."""
    job = JobFolder(tmp_path / "run", mesh={"dp": 2})
    for rank in (0, 1):
        job.entries[rank] = replace(job.entries[rank], device="NVIDIA H100")
        job.steps(rank, [*[2] * 6, 38, 50, 50, 350] * 6, tokens=1_000)
    report = analyze(str(job.write()))
    log = report.step_log
    assert (log.median_ns, log.wait_period, log.stalls) == (2 * MS, 10, ())
    assert log.step_ns == 50 * MS
    assert "A step takes 50.0 ms (median of 5 means over 10 steps)" in report.verdict.headline
    assert report.metrics()["step_median_seconds"] == pytest.approx(0.05)


def test_two_kinds_of_work_are_told_apart():
    long = sorted({*range(9, 200, 10), *range(16, 200, 37)})
    found = find_periodic_stalls(*steps(200, long))
    assert [stall.period for stall in found] == [10, 37]


def test_steps_that_are_all_alike_have_no_stalls():
    assert find_periodic_stalls(*steps(100)) == ()
    assert find_periodic_stalls(*steps(100, jitter=(0,))) == ()


def test_three_long_steps_are_not_enough():
    assert find_periodic_stalls(*steps(40, (9, 19, 29))) == ()


def test_long_steps_at_unequal_distances_are_no_period():
    assert find_periodic_stalls(*steps(100, (3, 11, 24, 31, 58, 77, 95))) == ()


def test_a_period_of_which_half_the_steps_are_short_is_none():
    long = [step for step in range(9, 200, 10) if step % 20 == 9 or step < 40]
    (stall,) = find_periodic_stalls(*steps(200, long))
    assert stall.period == 20  # and not 10, whose other steps are short


def test_steps_left_out_for_a_profiler_do_not_break_the_period():
    step, duration = steps(100, range(9, 100, 10))
    kept = (step < 45) | (step > 62)
    (stall,) = find_periodic_stalls(step[kept], duration[kept])
    assert (stall.period, stall.num_stalls, stall.num_due) == (10, 8, 8)


@given(st.integers(0, 2**32 - 1), st.sampled_from((40, 100, 300)))
def test_a_few_long_steps_anywhere_are_rarely_taken_for_a_period(seed, num_steps):
    """Four in a hundred steps: three draws in a thousand put them at equal distances."""
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(20):
        long = np.flatnonzero(rng.random(num_steps) < 0.04)
        found += bool(find_periodic_stalls(*steps(num_steps, long)))
    assert found <= 3


@given(
    period=st.integers(4, 25),
    first=st.integers(0, 3),
    longer=st.integers(60, 5_000),
    shift=st.integers(0, 10**6),
)
def test_any_period_is_found_wherever_counting_begins(period, first, longer, shift):
    step, duration = steps(period * 8, range(first, period * 8, period), longer)
    (stall,) = find_periodic_stalls(step + shift, duration)
    assert (stall.period, stall.first_step) == (period, first + shift)
    assert stall.num_stalls == stall.num_due == 8


def test_what_delays_one_rank_alone_is_no_stall(tmp_path):
    """Nobody waits for it here: no step is long on both."""
    job = JobFolder(tmp_path / "run", mesh={"dp": 2})
    long = [400 if step % 10 == 9 else 100 for step in range(60)]
    job.steps(0, long).steps(1, [100] * 60)
    both = [log_of(job, rank) for rank in (0, 1)]
    assert combine_step_logs(both).stalls == ()
    assert [stall.period for stall in combine_step_logs(both[:1]).stalls] == [10]


def log_of(job, rank):
    return measure_step_log(RankFolder(rank, str(job.rank_dir(rank))).load())


def test_logs_of_other_steps_are_joined_by_their_numbers(tmp_path):
    """Rank 1 ends five steps earlier: what both have is compared."""
    job = JobFolder(tmp_path / "run", mesh={"dp": 2})
    long = [400 if step % 10 == 9 else 100 for step in range(60)]
    job.steps(0, long).steps(1, long[:55])
    (stall,) = combine_step_logs([log_of(job, rank) for rank in (0, 1)]).stalls
    assert (stall.period, stall.first_step, stall.num_stalls) == (10, 9, 5)


def test_steps_that_one_period_explains_are_not_held_against_another():
    """Steps 60, 120 and 180 belong to both: the one that is found first has them."""
    long = sorted({*range(20, 200, 20), *range(0, 200, 15)})
    periods = {stall.period for stall in find_periodic_stalls(*steps(200, long))}
    assert periods == {15, 20}
