"""FLOP and memory of a job against its devices: by hand on run directories of eight H100."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import MemoryRecord, StepRecord
from distprof.config import parse_config
from distprof.costs.transformer import TrainedModel
from distprof.hardware import load_sheet
from distprof.run.run import Device
from distprof.sections.computation import ComputationResult
from distprof.sections.efficiency import NO_MODEL
from distprof.sections.efficiency.measure import analyze_efficiency
from distprof.sections.efficiency.models import preset
from distprof.sections.memory import MemoryResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.step_log import StepLogResult
from distprof.sections.time import StepTimeResult, WaterfallResult
from tests.builders import RankBuilder, make_run
from tests.job_folders import MS, START_NS, JobFolder
from tests.rules import samples

H100 = "NVIDIA H100 80GB HBM3"
GB = 10**9
LLAMA_7B = {
    "preset": "7b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008,
    "sequence": 4096, "vocabulary": 32000,
}  # fmt: skip
FLOP_PER_TOKEN = 6 * (6_738_415_616 - 32000 * 4096) + 12 * 32 * 4096 * 4096 / 2


def job_of(
    path,
    *,
    step_ms=1000,
    tokens=8192,
    device=H100,
    allocated=40 * GB,
    config=None,
    ranks=8,
    **fields,
):
    """Ranks that all do the same, twenty steps."""
    config = {"model": LLAMA_7B, "training": {}, "ddp": {}} if config is None else config
    job = JobFolder(path, mesh={"dp_replicate": ranks}, config=config, **fields)
    for rank in range(ranks):
        job.rank(rank, device=device).steps(rank, [3 * step_ms] + [step_ms] * 19, tokens=tokens)
        if allocated is not None:
            job.memory(rank, *memory_of(allocated, reserved=allocated + 2 * GB))
    return job


def memory_of(allocated, *, reserved, retries=(0,) * 20):
    return [
        MemoryRecord(
            step=step,
            t_ns=START_NS,
            peak_allocated_bytes=allocated,
            reserved_bytes=reserved,
            num_retries=total,
        )
        for step, total in enumerate(retries)
    ]


def report_of(job, config=None):
    return distprof.analyze(job.write(), config=parse_config(config or {}, "x.toml"), debug=True)


def efficiency_of(job, config=None):
    return report_of(job, config).efficiency


def test_mfu_by_hand(tmp_path):
    """8192 tokens of 42.9 GFLOP a second are 351 of 989 TFLOP/s."""
    found = efficiency_of(job_of(tmp_path / "run"))
    assert found.flop_per_token == pytest.approx(FLOP_PER_TOKEN)
    assert (found.tokens_per_step, found.num_devices, found.step_ns) == (65536, 8, 1000 * MS)
    assert found.tokens_per_s_per_device == pytest.approx(8192)
    assert found.flops_per_device == pytest.approx(8192 * FLOP_PER_TOKEN)
    assert found.mfu_ratio == pytest.approx(8192 * FLOP_PER_TOKEN / 989e12)
    assert found.hfu_ratio == pytest.approx(found.mfu_ratio)
    assert (found.sheet_device, found.precision, found.unavailable) == ("H100 SXM", "bf16", ())


def test_recomputation_raises_hfu_alone(tmp_path):
    config = {"model": LLAMA_7B, "training": {"checkpoint_activations": True}, "ddp": {}}
    plain = efficiency_of(job_of(tmp_path / "plain"))
    found = efficiency_of(job_of(tmp_path / "run", config=config))
    assert found.mfu_ratio == plain.mfu_ratio
    assert 1.3 < found.hfu_ratio / found.mfu_ratio < 4 / 3


@settings(max_examples=12)
@given(factor=st.integers(2, 50), ranks=st.integers(1, 4))
def test_mfu_goes_with_one_over_the_step_and_not_with_the_number_of_ranks(
    tmp_path_factory, factor, ranks
):
    folder = tmp_path_factory.mktemp("jobs")
    one = efficiency_of(job_of(folder / "one", allocated=None, ranks=1))
    slower = efficiency_of(
        job_of(folder / "slow", allocated=None, ranks=ranks, step_ms=1000 * factor)
    )
    assert slower.mfu_ratio == pytest.approx(one.mfu_ratio / factor)
    assert slower.flops_per_device == pytest.approx(one.flops_per_device / factor)


def test_a_cpu_has_no_peak_and_still_its_flop(tmp_path):
    report = report_of(job_of(tmp_path / "run", device="cpu", allocated=None))
    found = report.efficiency
    assert found.mfu_ratio is found.peak_flops is None
    assert found.flops_per_device == pytest.approx(8192 * FLOP_PER_TOKEN)
    assert "compute on a CPU" in found.unavailable[0]
    unchecked = {skipped.code for skipped in report.not_checked}
    assert not unchecked & {"SCA101", "MEM102", "MEM103", "MEM104"}


def test_an_unknown_device_is_named_with_the_way_out(tmp_path):
    (why,) = efficiency_of(job_of(tmp_path / "run", device="Acme X9")).unavailable
    assert why.startswith("Acme X9 is not on the hardware sheet")
    assert "[hardware.gpus." in why
    acme = {"bf16_tflops": 500, "memory_tb_per_s": 2, "memory_gb": 64, "scale_up_gb_per_s": 100}
    config = {"hardware": {"gpus": {"acme x9": acme}}}
    found = efficiency_of(job_of(tmp_path / "other", device="Acme X9"), config)
    assert found.mfu_ratio == pytest.approx(8192 * FLOP_PER_TOKEN / 500e12)
    assert found.memory[0].capacity_bytes == 64 * GB


def test_devices_of_two_kinds_have_no_common_peak(tmp_path):
    job = job_of(tmp_path / "run").rank(3, device="NVIDIA H200")
    found = efficiency_of(job)
    assert found.mfu_ratio is None
    assert (found.memory[3].capacity_bytes, found.memory[4].capacity_bytes) == (141 * GB, 80 * GB)


def test_products_in_fp32_have_no_peak_on_the_sheet(tmp_path):
    config = {"model": LLAMA_7B, "training": {"precision": "fp32"}, "ddp": {}}
    found = efficiency_of(job_of(tmp_path / "run", config=config))
    assert found.mfu_ratio is None
    assert "fp32" in found.unavailable[0]


def test_a_captured_job_says_how_to_name_its_model_and_uses_it_then(tmp_path):
    job = job_of(tmp_path / "run", kind="capture", workload="", config={})
    report = report_of(job)
    assert report.efficiency.unavailable == (NO_MODEL,)
    assert ("SCA101", NO_MODEL) in {(skip.code, skip.why) for skip in report.not_checked}
    named = efficiency_of(job, {"model": {"preset": "llama2-7b"}})
    assert named.mfu_ratio == pytest.approx(8192 * FLOP_PER_TOKEN / 989e12)


def test_without_a_count_of_tokens_the_batch_is_asked_for(tmp_path):
    job = job_of(tmp_path / "run", tokens=None, kind="capture", workload="", config={})
    model = {"preset": "llama2-7b"}
    assert "set batch" in efficiency_of(job, {"model": model}).unavailable[0]
    found = efficiency_of(job, {"model": {**model, "batch": 16}})
    assert found.tokens_per_step == 16 * 4096
    assert found.mfu_ratio == pytest.approx(8192 * FLOP_PER_TOKEN / 989e12)


def test_the_state_of_a_sharded_job_is_modelled_whole(tmp_path):
    """16 bytes of 6.74 B parameters, of which an eighth is held already."""
    config = {"model": LLAMA_7B, "training": {}, "fsdp": {"zero": "3"}}
    job = job_of(tmp_path / "run", workload="fsdp", config=config)
    job.mesh = {"dp_shard": 8}
    found = efficiency_of(job)
    assert found.unsharded_bytes == pytest.approx(40e9 + 16 * 6_738_415_616 * 7 / 8)
    assert (found.zero_stage, found.is_data_parallel_only) == (3, True)


def test_retries_count_in_the_second_half_and_cost_what_their_steps_take_longer(tmp_path):
    """Of ten steady steps two have retries and take 1.5 s instead of 1 s: 100 ms a step."""
    job = job_of(tmp_path / "run", ranks=2)
    totals = [3] * 12 + [4] * 4 + [6] * 4
    lengths = [1500 if step in (12, 16) else 1000 for step in range(20)]
    job.steps(1, lengths, tokens=8192)
    job.memory(1, *memory_of(70 * GB, reserved=79 * GB, retries=totals))
    quiet, busy = efficiency_of(job).memory
    assert (quiet.num_retries, quiet.retry_ns_per_step) == (0, None)
    assert (busy.num_retries, busy.retry_ns_per_step) == (3, 100 * MS)


def test_retries_of_the_first_half_are_those_of_an_allocator_that_learns(tmp_path):
    job = job_of(tmp_path / "run", ranks=1, allocated=None)
    job.memory(0, *memory_of(GB, reserved=GB, retries=[0] + [9] * 19))
    assert efficiency_of(job).memory[0].num_retries == 0


def test_a_report_with_it_is_saved_and_read_again(tmp_path):
    report = report_of(job_of(tmp_path / "run"))
    again = msgspec.json.decode(msgspec.json.encode(report), type=type(report))
    assert again.efficiency == report.efficiency


def test_micro_batches_that_would_fit_twice_are_named(tmp_path):
    job = job_of(tmp_path / "run", step_ms=700, allocated=30 * GB)
    for rank in range(8):
        job.lines(rank, STEPS_FILE, accumulated(rank_steps=20, step_ms=700))
    (found,) = report_of(job).findings
    assert (found.code, found.cost_ns_per_step) == ("MEM102", None)
    assert "4 micro-batches" in found.message
    assert found.headline.endswith("uses only 40.0 %")


def accumulated(*, rank_steps, step_ms, num_micro_batches=4, tokens=8192):
    return [
        StepRecord(
            step=step,
            start_ns=START_NS + step * step_ms * MS,
            end_ns=START_NS + (step + 1) * step_ms * MS,
            tokens=tokens,
            num_micro_batches=num_micro_batches,
        )
        for step in range(rank_steps)
    ]


def codes(job, config=None):
    return {finding.code for finding in report_of(job, config).findings}


def test_rules_on_a_job_that_wastes_memory(tmp_path):
    """351 of 989 TFLOP/s, four micro-batches at 42 of 80 GB: low MFU, and no room to double."""
    assert codes(job_of(tmp_path / "run")) == {"SCA101"}
    assert codes(job_of(tmp_path / "fast", step_ms=700)) == set()
    assert codes(job_of(tmp_path / "full", step_ms=700, allocated=76 * GB)) == {"MEM104"}


def traced(classes, *, tokens_per_step=8 * 200, axes=()):
    """Eight H100 that compute 16 of 20 ms, by hand-made results."""
    results = samples.healthy()
    shape = preset("llama2-7b")
    model = TrainedModel(
        name="llama2-7b",
        source="test",
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        shape=shape,
        sequence=4096,
        tokens_per_step=tokens_per_step,
    )
    return analyze_efficiency(
        make_run([RankBuilder(rank).rank(world_size=8) for rank in range(8)]),
        model,
        load_sheet(),
        step_log=StepLogResult(),
        step_time=results[StepTimeResult],
        memory=MemoryResult(),
        waterfall=results[WaterfallResult],
        collectives=samples.collectives(*classes),
        sharding=ShardingResult(axes=axes),
        computation=ComputationResult(),
    )


def counted(**facts):
    """Eight H100 without a known model; FLOP are those of 2 ranks and 5 steps."""
    results = samples.healthy()
    usual = {"ranks": (0, 4), "num_steps": 5, "counted_ratio": 1.0, "precision": "bf16"}
    run = make_run([RankBuilder(rank).rank(world_size=8) for rank in range(8)])
    device = Device(name="NVIDIA H100 80GB HBM3")
    return analyze_efficiency(
        replace(run, ranks=tuple(replace(rank, device=device) for rank in run.ranks)),
        None,
        load_sheet(),
        step_log=StepLogResult(),
        step_time=results[StepTimeResult],
        memory=MemoryResult(),
        waterfall=results[WaterfallResult],
        collectives=samples.collectives(),
        sharding=ShardingResult(),
        computation=ComputationResult(**{**usual, **facts}),
    )


def test_mfu_without_a_model_is_that_of_counted_flop():
    """2e12 FLOP per rank in 20 ms, a quarter of them recomputed: 75 and 100 TFLOP/s of 989."""
    found = counted(flop=2e13, recomputed_flop=5e12)
    assert found.step_ns == 20_000_000
    assert found.flops_per_device == pytest.approx(1.5e12 / 0.02)
    assert found.mfu_ratio == pytest.approx(75e12 / 989e12)
    assert found.hfu_ratio == pytest.approx(100e12 / 989e12)
    assert found.unavailable == ()


def test_products_in_fp64_are_not_held_against_the_peak_of_bf16():
    found = counted(flop=2e13, precision="fp64")
    assert (found.mfu_ratio, found.peak_flops) == (None, None)
    assert "no peak for fp64" in found.unavailable[0]


def test_flop_of_some_products_only_are_no_figure():
    found = counted(flop=2e13, counted_ratio=0.8)
    assert found.mfu_ratio is None
    assert found.unavailable == (NO_MODEL,)


def test_the_roofline_by_hand():
    """1 GB in 10 ms are 100 GB/s: the ridge is 989e12 / 100e9, 9,890 FLOP per byte."""
    gathers = samples.collective_class(sent_bytes_per_step=0.75e9, transfer_ns_per_step=6 * MS)
    sums = samples.collective_class(sent_bytes_per_step=0.25e9, transfer_ns_per_step=4 * MS)
    found = traced((gathers, sums), tokens_per_step=8 * 100)
    assert found.ridge_flop_per_byte == pytest.approx(9890)
    assert found.flop_per_byte == pytest.approx(100 * FLOP_PER_TOKEN / 1e9)
    assert found.bound_ratio == pytest.approx(100 * FLOP_PER_TOKEN / 1e9 / 9890)
    assert found.regime == "communication-bound"
    assert found.mfu_ratio == pytest.approx(100 * FLOP_PER_TOKEN / 0.020 / 989e12)
    assert found.computing_ratio == pytest.approx(found.mfu_ratio * 20 / 16)


def test_a_class_without_transfer_time_leaves_the_roofline_open():
    known = samples.collective_class(sent_bytes_per_step=1e9, transfer_ns_per_step=MS)
    unknown = samples.collective_class(sent_bytes_per_step=1e9, transfer_ns_per_step=None)
    found = traced((known, unknown))
    assert found.regime == ""
    assert found.flop_per_byte is found.bound_ratio is None
    assert found.mfu_ratio is not None


def test_traced_steps_say_that_they_are_what_the_figures_rest_on():
    assert "the time is the median of traced steps" in traced(()).assumptions


@pytest.mark.parametrize(("passes", "stage"), [(2.0, 3), (1.0, None), (None, None)])
def test_weights_gathered_again_for_the_backward_are_sharded(passes, stage):
    assert traced((), axes=(samples.sharded_axis(gather_passes=passes),)).zero_stage == stage


def test_more_than_the_peak_is_no_figure_but_a_contradiction():
    found = traced((), tokens_per_step=80 * 8192)
    assert found.mfu_ratio is found.hfu_ratio is found.computing_ratio is None
    assert "times the peak of its GPUs" in found.unavailable[0]


@pytest.mark.parametrize(("micro_batches", "tokens"), [(1, 8192), (4, 8192), (4, None)])
def test_activations_that_recomputation_saves_by_hand(tmp_path, micro_batches, tokens):
    """A block keeps 8H + 2·4H + 6·11008 bytes of a token, recomputed 2H: 123,392 less."""
    config = {"model": LLAMA_7B, "training": {"checkpoint_activations": True}, "ddp": {}}
    job = job_of(tmp_path / "run", config=config, ranks=2)
    for rank in range(2):
        lines = accumulated(
            rank_steps=20, step_ms=1000, num_micro_batches=micro_batches, tokens=tokens
        )
        job.lines(rank, STEPS_FILE, lines)
    found = efficiency_of(job)
    expected = 123_392 * 32 * 8192 / micro_batches if tokens else None
    assert found.recomputed_bytes == (pytest.approx(expected) if expected else None)


LARGE = 2**62


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.one_of(st.none(), st.integers(-1, LARGE)),
    allocated=st.integers(0, LARGE),
    retries=st.lists(st.integers(0, LARGE), min_size=1, max_size=30),
    lengths=st.lists(st.integers(0, 10**6), min_size=1, max_size=30),
    mesh=st.sampled_from(({"dp_shard": 2}, {"pp": 2}, {"dp": 0}, {})),
    recompute=st.booleans(),
)
def test_absurd_records_give_a_report(
    tmp_path_factory, tokens, allocated, retries, lengths, mesh, recompute
):
    config = {
        "model": LLAMA_7B,
        "training": {"checkpoint_activations": recompute},
        "fsdp": {"zero": "3"},
    }
    job = job_of(tmp_path_factory.mktemp("jobs") / "run", config=config, workload="fsdp", ranks=2)
    job.mesh = mesh
    job.steps(0, lengths, tokens=tokens)
    job.memory(1, *memory_of(allocated, reserved=allocated // 2, retries=retries))
    report = report_of(job)
    assert report.efficiency.mfu_ratio is None or 0 <= report.efficiency.mfu_ratio <= 1
    assert "distprof" in str(report)
