"""Step log, memory, sensors, routing and pauses: known answers, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import MemoryRecord, MoeRecord, NvmlRecord, Pause, StepRecord
from distprof.ingest.assemble import assemble_run
from distprof.ingest.job import open_run_directory
from distprof.ingest.job.rank_folder import RankFolder
from distprof.sections.context import RankAnalyses
from distprof.sections.idle.measure import measure_host_pauses, measure_pauses
from distprof.sections.job import NO_RUN_DIRECTORY
from distprof.sections.measure_run import measure_records
from distprof.sections.memory.measure import analyze_memory, measure_memory
from distprof.sections.moe.calls import combine_routing, measure_routing
from distprof.sections.step_log.measure import analyze_step_log, combine_step_logs, measure_step_log
from distprof.sections.telemetry.measure import analyze_telemetry, measure_telemetry
from distprof.sections.time.measure import analyze_waterfall
from tests.builders import RankBuilder, make_run
from tests.job_folders import MS, START_NS, JobFolder


@pytest.fixture
def job(tmp_path):
    return JobFolder(tmp_path / "run", mesh={"dp_replicate": 2})


def records_of(job, rank=0):
    return RankFolder(rank, str(job.rank_dir(rank))).load()


def measured(job):
    directory = open_run_directory(str(job.write()))
    return measure_records(assemble_run("x", (), (), directory))


# Step log ----------------------------------------------------------------------------------------


def test_figures_are_of_steps_that_no_profiler_touches(job):
    """Of 8 steps, 0 initialises, 4 is traced, 3 and 5 are its neighbours: 1, 2, 6 and 7 count."""
    job.steps(0, [90, 10, 12, 50, 20, 60, 14, 12], traced=(4,), tokens=120)
    row = measure_step_log(records_of(job)).row
    assert (row.num_steps, row.num_plain, row.first_step, row.last_step) == (8, 4, 0, 7)
    assert row.median_ns == 12 * MS
    assert row.traced_median_ns == 20 * MS
    assert row.tokens_per_s == 4 * 120 / 0.048
    assert row.cv == pytest.approx(math.sqrt(2) / 12)
    assert row.samples_per_s is None


def test_a_single_step_counts_though_it_is_the_first(job):
    row = measure_step_log(records_of(job.steps(0, [90]))).row
    assert (row.num_plain, row.median_ns, row.cv) == (1, 90 * MS, None)


def test_a_run_of_traced_steps_alone_has_no_plain_time(job):
    row = measure_step_log(records_of(job.steps(0, [9, 10, 11], traced=(0, 1, 2)))).row
    assert (row.median_ns, row.p95_ns, row.traced_median_ns) == (None, None, 10 * MS)


def test_phases_of_several_micro_batches_add_up_within_a_step(job):
    phases = (("forward", 0, 2), ("backward", 2, 5), ("forward", 5, 8), ("backward", 8, 9))
    spans = tuple(
        {"name": n, "start_ns": START_NS + a * MS, "end_ns": START_NS + b * MS}
        for n, a, b in phases
    )
    from distprof.artefacts.records import Phase

    record = StepRecord(
        step=0,
        start_ns=START_NS,
        end_ns=START_NS + 10 * MS,
        phases=tuple(Phase(**span) for span in spans),
    )
    row = measure_step_log(records_of(job.lines(0, STEPS_FILE, [record]))).row
    assert row.phases == {"forward": 5 * MS, "backward": 4 * MS}
    assert row.input_ratio == 0.0


def test_the_share_of_input_is_unknown_without_phases_and_told_with_them(job):
    job.steps(0, [10, 10, 10]).steps(1, [10, 10, 10], phases={"input": 0.2, "forward": 0.5})
    assert measure_step_log(records_of(job)).row.input_ratio is None
    assert measure_step_log(records_of(job, 1)).row.input_ratio == pytest.approx(0.2)


def test_a_step_lasts_as_long_as_on_the_median_rank_and_rates_add_up(job):
    job.steps(0, [50, 10, 14, 10], tokens=100, losses=[4.0, 3.0, 2.0, 1.0])
    job.steps(1, [50, 12, 10, 10], tokens=100, losses=[5.0, 3.0, 2.0, 2.0])
    found = combine_step_logs([measure_step_log(records_of(job, rank)) for rank in (0, 1)])
    assert found.median_ns == 11 * MS  # of 11, 12 and 10: each the middle of two
    assert found.tokens_per_s == pytest.approx(300 / 0.034 + 300 / 0.032)
    assert (found.first_loss, found.last_loss) == (4.5, 1.5)
    assert (found.num_steps, found.last_step) == (4, 3)


def test_the_last_step_is_the_last_that_every_rank_completed(job):
    job.steps(0, [10] * 9).steps(1, [10] * 6)
    found = combine_step_logs([measure_step_log(records_of(job, rank)) for rank in (0, 1)])
    assert (found.last_step, found.num_steps) == (5, 9)


def test_a_rank_without_steps_has_no_row(job):
    assert measure_step_log(records_of(job)) is None
    assert combine_step_logs([], ("why",)).unavailable == ("why",)


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=30))
def test_plain_and_traced_steps_are_apart(tmp_path_factory, steps):
    job = JobFolder(tmp_path_factory.mktemp("job"), mesh={"dp": 1})
    lengths, traced = [length for length, _ in steps], [i for i, (_, t) in enumerate(steps) if t]
    log = measure_step_log(records_of(job.steps(0, lengths, traced=traced)))
    assert not (log.is_plain & log.is_traced).any()
    assert (log.row.traced_median_ns is None) == (not traced)
    assert log.row.median_ns is None or min(lengths) * MS <= log.row.median_ns <= max(lengths) * MS


# Memory ------------------------------------------------------------------------------------------


def test_memory_is_the_highest_and_what_a_cpu_lacks_is_unknown(job):
    job.memory(
        0,
        MemoryRecord(step=0, t_ns=START_NS, peak_allocated_bytes=70, reserved_bytes=90),
        MemoryRecord(step=1, t_ns=START_NS, peak_allocated_bytes=60, reserved_bytes=95),
    )
    row = measure_memory(records_of(job))
    assert (row.peak_allocated_bytes, row.reserved_bytes, row.num_samples) == (70, 95, 2)
    assert row.num_retries is row.peak_rss_bytes is row.rss_growth_bytes_per_step is None


def test_growth_is_that_of_the_second_half(job):
    """1000 bytes of start-up, then 10 bytes a step from step 8 on."""
    sizes = [1000] * 8 + [1000 + 10 * i for i in range(8)]
    records = [MemoryRecord(step=i, t_ns=START_NS, rss_bytes=s) for i, s in enumerate(sizes)]
    assert measure_memory(records_of(job.memory(0, *records))).rss_growth_bytes_per_step == 10


# Sensors -----------------------------------------------------------------------------------------


def test_sensors_over_the_whole_run(job):
    second = 1_000_000_000
    job.nvml(
        0,
        NvmlRecord(t_ns=START_NS, sm_clock_mhz=1980, throttle_reasons=(), power_w=300.0,
                   nvlink_tx_bytes=0, ecc_uncorrected=2),
        NvmlRecord(t_ns=START_NS + second, sm_clock_mhz=1200, throttle_reasons=("sw_power_cap",),
                   power_w=700.0, nvlink_tx_bytes=10, xid=(79,)),
        NvmlRecord(t_ns=START_NS + 2 * second, sm_clock_mhz=1900, nvlink_tx_bytes=30,
                   ecc_uncorrected=3, temperature_c=81),
    )  # fmt: skip
    row = measure_telemetry(records_of(job))
    assert (row.sm_clock_mhz_median, row.sm_clock_mhz_min) == (1900, 1200)
    assert row.throttled_ratio == 0.5  # of the two samples that tell
    assert row.throttle_reasons == {"sw_power_cap": 0.5}
    assert (row.power_w_mean, row.power_w_max, row.temperature_c_max) == (500.0, 700.0, 81)
    assert row.nvlink_tx_bytes_per_s == 15.0
    assert (row.ecc_uncorrected, row.xid) == (1, (79,))
    assert row.gpu_utilization_ratio is row.pcie_tx_bytes_per_s is row.memory_used_bytes is None


def test_the_gpu_of_a_rank_and_the_most_processes_on_it_are_known(job):
    """The slow sensors are read in some samples only."""
    counts = (None, 1, 3, None)
    job.nvml(0, *(NvmlRecord(t_ns=START_NS + i, num_processes=n) for i, n in enumerate(counts)))
    assert measure_telemetry(records_of(job)).num_processes == 3


def test_a_device_that_tells_nothing_has_no_zeros(job):
    row = measure_telemetry(records_of(job.nvml(0, NvmlRecord(t_ns=START_NS))))
    numbers = [getattr(row, n) for n in row.__struct_fields__ if n not in ("rank", "num_samples")]
    assert [n for n in numbers if n not in (None, {}, ())] == []


# Routing -----------------------------------------------------------------------------------------


def routing(step, tokens, *, layer="moe", rank_tokens=4, micro_batch=0, **more):
    return MoeRecord(
        step=step,
        layer=layer,
        micro_batch=micro_batch,
        tokens_per_expert=tuple(tokens),
        num_tokens=rank_tokens,
        top_k=2,
        **more,
    )


def layers_of(job, places=None, ranks=(0, 1)):
    found = [measure_routing(records_of(job, rank)) for rank in ranks]
    return combine_routing([r for r in found if r], places or {})


def test_even_routing_is_even(job):
    job.moe(0, routing(0, [2, 2, 2, 2])).moe(1, routing(0, [2, 2, 2, 2]))
    (layer,) = layers_of(job).layers
    assert (layer.max_over_mean, layer.cv, layer.entropy) == (1.0, 0.0, pytest.approx(1.0))
    assert (layer.dead_ratio, layer.dropped_ratio, layer.num_experts) == (0.0, 0.0, 4)
    assert layer.lost_ns_per_step is None


def test_the_figures_of_a_step_are_of_all_ranks_and_micro_batches_together(job):
    """(6, 2, 0, 0) + (0, 0, 6, 2) + (0, 4, 0, 4): 6 each, though every part is uneven."""
    job.moe(0, routing(0, [6, 2, 0, 0])).moe(
        1, routing(0, [0, 0, 6, 2]), routing(0, [0, 4, 0, 4], micro_batch=1)
    )
    (layer,) = layers_of(job).layers
    assert (layer.max_over_mean, layer.cv, layer.tokens_per_step) == (1.0, 0.0, 12)


def test_uneven_routing_by_hand(job):
    """Formula sheet: 8, 4, 4, 0 of 16: max/mean 2, cv √8/4, entropy 1.5 ln 2 / ln 4, one dead."""
    job.moe(0, routing(0, [8, 4, 4, 0], rank_tokens=8, dropped=4))
    (layer,) = layers_of(job, ranks=(0,)).layers
    assert layer.max_over_mean == 2.0
    assert layer.cv == pytest.approx(math.sqrt(8) / 4)
    assert layer.entropy == pytest.approx(0.75)
    assert layer.dead_ratio == 0.25
    assert layer.dropped_ratio == 0.25
    assert (layer.busiest_expert, layer.busiest_share_ratio) == (0, 0.5)


def test_steps_that_not_every_rank_logged_are_left_out(job):
    job.moe(0, routing(0, [9, 1]), routing(1, [5, 5])).moe(1, routing(1, [5, 5]))
    (layer,) = layers_of(job).layers
    assert (layer.num_steps, layer.max_over_mean) == (1, 1.0)


def test_layers_of_pipeline_stages_that_are_called_alike_are_apart(job):
    job.moe(0, routing(0, [2, 2])).moe(1, routing(0, [4, 0]))
    found = layers_of(job, {0: {"pp": 0}, 1: {"pp": 1}}).layers
    assert [(layer.layer, layer.max_over_mean) for layer in found] == [
        ("moe (stage 0)", 1.0),
        ("moe (stage 1)", 2.0),
    ]


def test_tensor_parallel_ranks_count_the_same_tokens_once(job):
    job.moe(0, routing(0, [2, 2])).moe(1, routing(0, [2, 2]))
    (layer,) = layers_of(job, {0: {"tp": 0}, 1: {"tp": 1}}).layers
    assert layer.tokens_per_step == 4


def test_layers_with_changing_numbers_of_experts_are_left_out_and_said(job):
    job.moe(0, routing(0, [2, 2]), routing(1, [2, 2, 2]))
    found = layers_of(job)
    assert found.layers == ()
    assert "number of experts" in found.unavailable[0]


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=6))
def test_figures_stay_within_their_bounds(tmp_path_factory, steps):
    job = JobFolder(tmp_path_factory.mktemp("job"), mesh={"ep": 1})
    job.moe(0, *(routing(i, tokens) for i, tokens in enumerate(steps)))
    for layer in layers_of(job, ranks=(0,)).layers:
        assert 1 <= layer.max_over_mean <= 3
        assert -1e-9 <= layer.entropy <= 1 + 1e-9
        assert 0 <= layer.dead_ratio < 1
        assert 0 <= layer.dropped_ratio <= 1


# Pauses ------------------------------------------------------------------------------------------


def pause(kind, start, end, step, **more):
    return Pause(
        kind=kind, start_ns=START_NS + start * MS, end_ns=START_NS + end * MS, step=step, **more
    )


def test_pauses_are_means_over_steps_without_the_first(job):
    """30 ms in step 0 are left out; 6 and an overlapping 4 ms make 8 over two steps."""
    job.steps(0, [50, 10, 14]).pauses(
        0,
        pause("gc", 1, 31, 0),
        pause("gc", 50, 56, 1),
        pause("gc", 54, 58, 1),
        pause("input", 60, 62, 2),
    )
    row = measure_pauses(records_of(job))
    assert row.step_ns == 12 * MS
    assert (row.gc_ns_per_step, row.num_gc, row.longest_gc_ns) == (4 * MS, 2, 6 * MS)
    assert (row.input_ns_per_step, row.longest_input_ns) == (MS, 2 * MS)
    assert measure_host_pauses(records_of(job)).gc_ns == {0: 30 * MS, 1: 10 * MS}


def test_only_waits_that_were_observed_say_what_loaders_did(job):
    """A machine that is busy for a while: 3 + 1 ms without a CPU over two steps."""
    seen = {"cpu_ns": MS, "run_queue_ns": 3 * MS}
    job.steps(0, [50, 10, 10]).pauses(
        0,
        pause("input", 1, 31, 0, **seen),
        pause("input", 50, 56, 1, **seen, in_phase=True),
        pause("input", 60, 62, 2),
        pause("input", 64, 66, 2, cpu_ns=0, run_queue_ns=MS),
    )
    row, steps = measure_pauses(records_of(job)), measure_host_pauses(records_of(job))
    assert (row.input_ns_per_step, row.input_queue_ns_per_step) == (2 * MS, 2 * MS)
    assert steps.loader_queue_ns == {0: 3 * MS, 1: 3 * MS, 2: MS}
    assert steps.loader_cpu_ns == {0: MS, 1: MS, 2: 0}


def test_waits_that_nobody_observed_leave_loaders_unknown(job):
    job.steps(0, [50, 10, 10]).pauses(0, pause("input", 60, 62, 2))
    assert measure_pauses(records_of(job)).input_queue_ns_per_step is None
    assert measure_host_pauses(records_of(job)).loader_queue_ns is None


def test_pauses_between_steps_are_distprofs_own_and_not_the_programs(job):
    """20 ms of collecting while the profiler starts between two steps, and 2 ms in a step."""
    records = [
        StepRecord(step=i, start_ns=START_NS + low * MS, end_ns=START_NS + (low + 10) * MS)
        for i, low in enumerate((0, 10, 50, 60))
    ]
    job.lines(0, STEPS_FILE, records)
    job.pauses(0, pause("gc", 25, 45, 2), pause("gc", 51, 53, 2))
    row = measure_pauses(records_of(job))
    assert (row.num_gc, row.longest_gc_ns) == (1, 2 * MS)
    assert measure_host_pauses(records_of(job)).gc_ns == {2: 2 * MS}


def test_pauses_that_were_not_watched_are_unknown(job):
    job.steps(0, [10, 10])
    assert measure_pauses(records_of(job)) is None
    assert measure_host_pauses(records_of(job)).gc_ns is None


# All together ------------------------------------------------------------------------------------


def test_a_probe_that_could_not_work_says_why_in_its_result(job):
    job.probe("nvml", "unavailable", "no NVML library: there is no NVIDIA driver here")
    found = measured(job.steps(0, [10, 10]).steps(1, [10, 10]))
    step_log = analyze_step_log(found)
    waterfall = analyze_waterfall(RankAnalyses.of([]))
    telemetry = analyze_telemetry(make_run([]), found, waterfall, step_log)
    assert telemetry.ranks == ()
    assert telemetry.unavailable == ("no NVML library: there is no NVIDIA driver here (ranks 0-1)",)
    assert step_log.unavailable == ()


def test_damage_is_said_once_for_all_ranks_that_have_it(job):
    for rank in (0, 1):
        job.steps(rank, [10, 10])
        with (job.rank_dir(rank) / STEPS_FILE).open("a") as stream:
            stream.write("{oops\n")
    assert analyze_step_log(measured(job)).unavailable == (
        "ranks 0-1: Skipped 1 damaged line in steps.jsonl.",
    )


def test_bare_traces_have_no_records_and_say_so():
    found = measure_records(make_run([RankBuilder(0).rank()]))
    assert analyze_step_log(found).ranks == ()
    assert analyze_memory(found).unavailable == (NO_RUN_DIRECTORY,)


def test_counts_of_long_logs_stay_exact(job):
    """More steps than are joined across ranks: a rank's own figures are of all of them."""
    from distprof.sections.step_log import measure as step_log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_log, "MAX_STEPS_COMPARED", 3)
        log = measure_step_log(records_of(job.steps(0, [10] * 8)))
    assert (log.row.num_steps, len(log.step)) == (8, 3)
    assert np.array_equal(log.step, [5, 6, 7])


def test_waiting_for_a_cpu_is_a_mean_of_usual_steps(job):
    """The step in which the profiler wrote its file does not count, nor time between steps."""
    lasted, queued = (50, 10, 10, 90, 10, 10), (None, 2, 4, 80, 60, 0)
    records = [
        StepRecord(
            step=step,
            start_ns=START_NS + 1_000 * step * MS,
            end_ns=START_NS + (1_000 * step + ms) * MS,
            run_queue_ns=None if waited is None else waited * MS,
            cpu_ns=None if waited is None else 3 * waited * MS,
        )
        for step, (ms, waited) in enumerate(zip(lasted, queued, strict=True))
    ]
    job.lines(0, STEPS_FILE, records).pauses(0, pause("gc", 1, 2, 1))
    assert measure_pauses(records_of(job)).run_queue_ns_per_step == (2 + 4 + 10 + 0) * MS // 4
    assert measure_pauses(records_of(job)).cpu_ns_per_step == (6 + 10 + 10 + 0) * MS // 4
    assert measure_pauses(records_of(job)).slept_ns_per_step == 0
    assert measure_host_pauses(records_of(job)).cpu_ns == {
        step: ms * MS for step, ms in enumerate((6, 10, 90, 10, 0), 1)
    }
    by_step = measure_host_pauses(records_of(job)).run_queue_ns
    assert by_step == {1: 2 * MS, 2: 4 * MS, 3: 80 * MS, 4: 10 * MS, 5: 0}
