"""Computation: kernels to operators, passes and categories, FLOP, and what changes would save."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.artefacts.fabric_file import ComputeRate, FabricFile
from distprof.hardware import load_sheet
from distprof.run.run import Device
from distprof.sections.computation import NO_OPERATORS, NO_SHAPES, ComputationResult, Saves
from distprof.sections.computation.categories import categories, of_kernel, strong, weak
from distprof.sections.computation.measure import analyze_computation
from distprof.sections.computation.operators import MOST_NESTED, Operators
from distprof.sections.computation.show import categories_table
from distprof.sections.context import RankAnalyses
from distprof.sections.measure_run import measure_rank
from distprof.sections.moe import MoeResult
from distprof.sections.pipeline import PipelineResult
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.whatif.measure import analyze_whatif
from distprof.sections.whatif.plan import Workbench
from tests.builders import MAIN_THREAD, RankBuilder, make_run
from tests.sections.measured import context_of, measure, measured
from tests.sections.whatif.test_trace_graph import whatif_of

GOLDEN = Path(__file__).parents[1] / "golden"
BACKWARD_THREAD = "100/200"
BF16 = "c10::BFloat16"


def inputs(*sizes: list[int], kind: str = BF16) -> str:
    return json.dumps([list(sizes), [kind] * len(sizes), [""] * len(sizes)])


class Program(RankBuilder):
    """Operators that launch one kernel each, one after another on one stream."""

    def __init__(self) -> None:
        super().__init__(0)
        self.now = 0
        self.gpu = 0

    def op(
        self,
        name: str,
        lasts: int,
        *sizes: list[int],
        kernel: str = "elementwise_kernel",
        around: tuple[str, ...] = (),
        sequence: int = -1,
        thread: str = MAIN_THREAD,
        kind: str = BF16,
    ) -> "Program":
        start, self.now = self.now, self.now + 100
        for depth, outer in enumerate(around):
            self.operator(outer, start + depth, start + 99 - depth, thread=thread)
        text = inputs(*sizes, kind=kind) if sizes else ""
        low, high = start + 20, start + 60
        self.operator(name, low, high, thread=thread, sequence=sequence, inputs=text)
        self.kernel(
            kernel, self.gpu, self.gpu + lasts, launched=(start + 30, start + 40), thread=thread
        )
        self.gpu += lasts
        return self

    def cast(self, size: list[int], before: str, after: str) -> "Program":
        """A copy from one type to another in the forward pass."""
        self.op("aten::copy_", 20, size, sequence=1)
        self.host[-2]["inputs"] = json.dumps([[size, size], [after, before], ["", ""]])
        return self


H100 = "NVIDIA H100 80GB HBM3"


def explained(
    rank: RankBuilder, device: str = H100, fabric: FabricFile | None = None
) -> ComputationResult:
    analysis = measured(rank)
    run = make_run([replace(rank.rank(), device=Device(name=device))])
    return analyze_computation(run, RankAnalyses.of([analysis]), load_sheet(), fabric)


def times_of(result: ComputationResult) -> dict[str, int]:
    return {row.name: row.total_ns for row in result.categories}


def saved_of(result: ComputationResult) -> dict[str, int]:
    return {one.what: one.saved_ns for one in result.savings}


# From kernels to operators -----------------------------------------------------------------------


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch():
    program = Program().op("aten::addmm", 70, [2], [8, 4], [4, 2], around=("aten::linear",))
    (row,) = explained(program).operators
    assert (row.name, row.num_calls, row.total_ns, row.category) == ("aten::addmm", 1, 70, "gemm")
    assert row.flop == 2 * 8 * 4 * 2
    assert row.inputs == "bf16[2] · bf16[8, 4] · bf16[4, 2]"


def test_an_operator_with_known_flop_has_the_kernels_of_operators_inside_it():
    forward = "aten::_scaled_dot_product_flash_attention"
    size = [1, 2, 16, 8]
    program = Program()
    program.operator(forward, 0, 100, inputs=inputs(size, size, size))
    program.operator("aten::_flash_attention_forward", 10, 90)
    program.kernel("flash_fwd_kernel", 0, 40, launched=(20, 30))
    program.kernel("helper", 40, 45, launched=(40, 50))
    (row,) = explained(program).operators
    assert (row.name, row.num_calls, row.total_ns) == (forward, 1, 45)
    assert row.category == "attention"


def test_operators_of_a_hostile_trace_are_nested_only_so_deep():
    rank = RankBuilder()
    for depth in range(2_000):
        rank.operator("aten::mm" if depth < MOST_NESTED else "aten::mul", depth, 10_000 - depth)
    rank.kernel("k", 0, 10, launched=(4_000, 4_010))
    operators = Operators.of(rank.tables().host)
    assert len(operators.levels) == MOST_NESTED + 1
    (row,) = explained(rank).operators
    assert row.total_ns == 10


def test_without_operators_names_of_kernels_say_what_they_compute():
    rank = (
        RankBuilder().kernel("ampere_sgemm_128x64_nn", 0, 30).kernel("softmax_warp_forward", 30, 40)
    )
    result = explained(rank)
    assert times_of(result) == {"gemm": 30, "softmax": 10}
    assert result.unavailable == (NO_OPERATORS,)
    assert result.flop is None


def test_operators_without_sizes_are_said_to_lack_them():
    result = explained(Program().op("aten::mm", 10))
    assert result.unavailable == (NO_SHAPES,)
    assert result.counted_ratio == 0


def test_where_kernels_overlap_the_time_belongs_to_the_first():
    rank = RankBuilder().kernel("gemm", 0, 50).kernel("softmax", 30, 80, stream=9)
    result = explained(rank)
    assert times_of(result) == {"gemm": 50, "softmax": 30}
    assert result.total_ns == 80


kernels = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 80), st.integers(1, 3)), min_size=1, max_size=30
)


@given(kernels=kernels, windows=st.lists(st.integers(0, 600), min_size=2, max_size=5, unique=True))
def test_categories_and_operators_add_up_to_the_computation_of_the_waterfall(kernels, windows):
    rank = RankBuilder()
    names = ("gemm", "elementwise", "softmax", "unheard of")
    for number, (start, lasts, stream) in enumerate(kernels):
        rank.kernel(names[number % len(names)], start, start + lasts, stream=stream)
    bounds = sorted(windows)
    for number, (low, high) in enumerate(pairwise(bounds)):
        rank.step(number, low, high)
    analysis = measured(rank)
    result = analyze_computation(make_run([rank.rank()]), RankAnalyses.of([analysis]), load_sheet())
    assert result.total_ns == analysis.waterfall.computation_ns
    assert sum(row.total_ns for row in result.categories) == result.total_ns
    assert sum(row.total_ns for row in result.operators) == result.total_ns


# Passes ------------------------------------------------------------------------------------------

NODE = "autograd::engine::evaluate_function: MmBackward0"


def test_each_kernel_belongs_to_a_pass():
    program = (
        Program()
        .op("aten::mm", 10, sequence=5)
        .op("aten::mm", 20, around=(NODE, "MmBackward0"), thread=BACKWARD_THREAD)
        .op("aten::add_", 7, around=(NODE,), thread=BACKWARD_THREAD)
        .op("aten::mm", 30, around=(NODE, "MmBackward0"), sequence=9, thread=BACKWARD_THREAD)
        .op("aten::mul", 40, around=("Optimizer.step#AdamW.step",))
        .op("aten::linalg_vector_norm", 50)
    )
    rows = {row.name: row for row in explained(program).categories}
    gemm = rows["gemm"]
    assert (gemm.forward_ns, gemm.backward_ns, gemm.recomputation_ns) == (10, 20, 30)
    assert rows["elementwise"].backward_ns == 7  # a gradient that is added up is no product
    assert rows["optimizer"].optimizer_ns == 40
    assert rows["reduction"].other_ns == 50


def test_flop_of_recomputation_are_known_separately():
    size = [8, 8], [8, 8]
    program = (
        Program()
        .op("aten::mm", 10, *size, sequence=5)
        .op("aten::mm", 10, *size, around=(NODE, "MmBackward0"), sequence=9)
    )
    result = explained(program)
    assert (result.flop, result.recomputed_flop) == (2 * 1024, 1024)
    assert result.counted_ratio == 1
    assert result.precision == "bf16"


# Limits of the GPU -------------------------------------------------------------------------------


def test_a_product_is_limited_by_computation_and_a_copy_by_memory():
    side = 8192
    flop, moved = 2 * side**3, 2 * 3 * side**2
    program = Program().op("aten::mm", 2_000_000, [side, side], [side, side])
    program.op("aten::add", 400_000, [side, side], [side, side])
    rows = {row.name: row for row in explained(program).operators}
    product, addition = rows["aten::mm"], rows["aten::add"]
    assert product.bound == "computation"
    assert product.flops == pytest.approx(flop / 2e-3)
    assert product.peak_ratio == pytest.approx(flop / 989e12 / 2e-3)
    assert addition.bound == "memory"
    assert addition.peak_ratio == pytest.approx(moved / 3.35e12 / 400e-6)


def test_fp32_products_have_no_limit_unless_they_run_on_tensor_cores():
    size = [4096, 4096], [4096, 4096]
    slow = Program().op("aten::mm", 3_000_000, *size, kernel="ampere_sgemm", kind="float")
    fast = Program().op("aten::mm", 500_000, *size, kernel="gemm_tf32f32", kind="float")
    assert explained(slow).operators[0].bound == ""
    assert explained(fast).operators[0].peak_ratio == pytest.approx(2 * 4096**3 / 494.5e12 / 5e-4)


def test_products_in_slower_types_lose_what_the_type_of_most_flop_would_save():
    """Tensor cores are eight times as fast as fp32 without them, and twice as fast in bf16."""
    program = Program().op("aten::mm", 100, [512, 512], [512, 512])
    program.op("aten::mm", 80, [8, 8], [8, 8], kernel="ampere_sgemm", kind="float")
    program.op("aten::mm", 40, [9, 9], [9, 9], kernel="gemm_tf32f32", kind="float")
    result = explained(program)
    assert (result.precision, result.slower_types_ns) == ("bf16", 70 + 20)
    alone = Program().op("aten::mm", 40, [8, 8], [8, 8], kernel="gemm_tf32f32", kind="float")
    assert (explained(alone).precision, explained(alone).slower_types_ns) == ("tf32", 0)


def test_a_note_says_of_how_much_no_flop_are_known_and_why():
    report = distprof.analyze(distprof.open_run(GOLDEN / "kineto" / "tp8-b200-rank0"))
    rows = tuple(
        replace(row, flop=None) if row.name == EXPERTS else row
        for row in report.computation.operators
    )
    result = replace(report.computation, operators=rows, counted_ratio=0.122, recorded_ratio=0.3)
    view = categories_table(replace(report, computation=result), show_all=False)
    assert view is not None
    assert view.notes[0].startswith("FLOP are known of 12.2 % of the time in matrix products,")
    assert "; sizes were recorded of 30.0 %; " in view.notes[0]
    assert view.notes[0].endswith("vllm::moe_forward, whose inputs do not show them")


def test_grids_of_routed_experts_show_their_flop_once():
    """Of a recording; what it allocates, ``[888, 4]`` and ``[5472, 512]``, is not read."""
    report = distprof.analyze(distprof.open_run(GOLDEN / "kineto" / "tp8-b200-rank0"))
    result = report.computation
    (row,) = [row for row in result.operators if row.name == EXPERTS and row.flop is not None]
    assert row.flop == 2 * 888 * 4 * (3072 * 2 * 512 + 512 * 3072)
    assert (row.num_calls, result.precision) == (36, "fp8")
    assert result.counted_ratio == pytest.approx(0.925, abs=0.001)
    assert result.recorded_ratio == 1


EXPERTS = "vllm::moe_forward"


def test_no_limit_on_a_gpu_that_the_sheet_does_not_list():
    program = Program().op("aten::mm", 10, [8, 8], [8, 8])
    (row,) = explained(program, "Some GPU").operators
    assert (row.bound, row.peak_ratio) == ("", None)
    assert row.flops is not None


def test_fp8_bounds_what_16_bit_products_could_save_where_the_gpu_has_it():
    program = Program().op("aten::mm", 1000, [64, 64], [64, 64])
    program.op("aten::mm", 700, [64, 64], [64, 64], kind="float").op("aten::gelu", 50, [64, 64])
    assert explained(program).fp8_bound_ns == round(1000 * (1 - 989 / 1979))
    assert explained(program, "NVIDIA A100-SXM4-80GB").fp8_bound_ns is None


def speeds(device: str, memory: float = 3e12, **flops: float) -> FabricFile:
    rates = tuple(ComputeRate(dtype=kind, flops=one, size=8192) for kind, one in flops.items())
    return FabricFile(
        origin="distprof bench", device=device, curves=(), rates=rates, memory_bytes_per_s=memory
    )


def test_measured_limits_count_instead_of_the_sheet_and_for_fp32_too():
    size = [4096, 4096], [4096, 4096]
    program = Program().op("aten::mm", 1_000_000, *size)
    program.op("aten::bmm", 4_000_000, [1, 4096, 4096], [1, 4096, 4096], kind="float")
    program.op("aten::add", 50_000, *size)
    result = explained(program, fabric=speeds(H100, bf16=700e12, fp32=50e12))
    ratios = {row.name: row.peak_ratio for row in result.operators}
    assert ratios["aten::mm"] == pytest.approx(2 * 4096**3 / 700e12 / 1e-3)
    assert ratios["aten::bmm"] == pytest.approx(2 * 4096**3 / 50e12 / 4e-3)
    assert ratios["aten::add"] == pytest.approx(2 * 3 * 4096**2 / 3e12 / 50e-6)
    assert result.is_measured
    assert {roof.dtype: roof.flops for roof in result.roofs} == {"bf16": 700e12, "fp32": 50e12}


def test_an_operator_may_be_a_little_faster_than_the_measured_limit_but_not_twice_as_fast():
    def ratio_at(peak: float) -> float | None:
        program = Program().op("aten::mm", 1_000_000, [4096, 4096], [4096, 4096])
        (row,) = explained(program, fabric=speeds(H100, bf16=peak)).operators
        return row.peak_ratio

    reached = 2 * 4096**3 / 1e-3
    assert ratio_at(reached / 1.03) == 1
    assert ratio_at(reached / 2) is None


def test_limits_that_were_measured_on_another_gpu_are_not_used():
    program = Program().op("aten::mm", 1_000_000, [4096, 4096], [4096, 4096])
    result = explained(program, fabric=speeds("NVIDIA A100", bf16=200e12))
    assert not result.is_measured
    assert result.operators[0].peak_ratio == pytest.approx(2 * 4096**3 / 989e12 / 1e-3)
    assert any("NVIDIA A100" in why for why in result.unavailable)


def test_a_profile_of_collectives_alone_changes_no_limit():
    program = Program().op("aten::mm", 1_000_000, [4096, 4096], [4096, 4096])
    fabric = FabricFile(origin="distprof bench", device="NVIDIA A100", curves=())
    assert explained(program, fabric=fabric) == explained(program)


# What changes would save -------------------------------------------------------------------------


def attention(program: Program, sequence: int = 256) -> Program:
    """Attention written out: 100 ns in two products, 300 ns in what runs on the scores."""
    scores = [12, sequence, sequence]
    return (
        program.op("aten::bmm", 50, [12, sequence, 64], [12, 64, sequence])
        .op("aten::div", 100, scores, [])
        .op("aten::masked_fill", 100, scores, [sequence, sequence])
        .op("aten::_softmax", 100, scores)
        .op("aten::bmm", 50, scores, [12, sequence, 64])
    )


def test_fused_attention_saves_what_runs_on_scores_and_half_of_the_products():
    program = attention(Program().op("aten::mm", 500, [3072, 64], [64, 64]))
    result = explained(program)
    assert saved_of(result)[Saves.FUSED_ATTENTION] == 300 + 50


def test_the_size_of_attention_is_that_of_its_scores():
    program = Program().op("aten::mm", 50, [64, 32], [32, 100]).op("aten::_softmax", 9, [64, 100])
    (saving,) = explained(attention(program)).savings
    assert saving.size == "[12, 256, 256]"


def test_attention_over_a_few_tokens_is_left_alone():
    assert Saves.FUSED_ATTENTION not in saved_of(explained(attention(Program(), sequence=32)))


def test_a_softmax_over_classes_is_no_attention():
    program = Program().op("aten::mm", 50, [64, 32], [32, 100]).op("aten::_softmax", 9, [64, 100])
    assert Saves.FUSED_ATTENTION not in saved_of(explained(program))


def test_a_fused_loss_reads_logits_twice_and_writes_them_once():
    rows, vocabulary = 64, 10_000
    logits = [rows, vocabulary]
    program = (
        Program()
        .op("aten::mm", 50, [rows, 32], [32, vocabulary])
        .op("aten::copy_", 60, logits, logits, kind="float")
        .op("aten::_log_softmax", 80, logits, kind="float")
        .op("aten::_log_softmax_backward_data", 120, logits, logits, logits, kind="float")
    )
    moved = 8 + 8 + 16  # bytes per element: copy, softmax, its gradient
    assert saved_of(explained(program))[Saves.FUSED_LOSS] == round(260 * (1 - 6 / moved))


def test_a_small_vocabulary_needs_no_fused_loss():
    program = Program().op("aten::mm", 50, [64, 32], [32, 1000])
    program.op("aten::_log_softmax", 80, [64, 1000])
    assert Saves.FUSED_LOSS not in saved_of(explained(program))


def test_merged_kernels_do_not_read_what_the_one_before_wrote():
    size = [1024, 1024]
    program = (
        Program()
        .op("aten::gelu", 30, size, sequence=1)
        .op("aten::mul", 30, size, size, sequence=2)  # reads one of its two inputs from gelu
        .op("aten::mm", 30, size, size, sequence=3)
        .op("aten::silu", 30, size, sequence=4)  # a product wrote its input
    )
    assert saved_of(explained(program))[Saves.MERGED_KERNELS] == 10


def test_kernels_of_a_compiler_are_merged_already():
    size = [1024, 1024]
    name = "triton_poi_fused_gelu_0"
    program = Program().op(name, 30, size, sequence=1, kernel=name)
    program.op(name, 30, size, sequence=2, kernel=name)
    assert Saves.MERGED_KERNELS not in saved_of(explained(program))


@pytest.mark.parametrize(("order", "alive"), [("FBFB", 1), ("FFBB", 2)])
def test_recomputation_saves_its_time_and_needs_memory_while_it_is_kept(order, alive):
    """In a pipeline, results of several micro-batches are kept at once."""
    program = Program()
    for number, one in enumerate(order):
        around = () if one == "F" else (NODE, "CheckpointFunctionBackward")
        program.op("aten::mm", 10, [8, 8], [8, 8], around=around, sequence=number)
    (saving,) = explained(program).savings
    assert (saving.what, saving.saved_ns) == (Saves.NO_RECOMPUTATION, 20)
    assert saving.num_bytes == alive * 128


def test_regions_to_keep_first_save_most_time_per_byte_and_then_are_the_last():
    program = Program().op("aten::mm", 10, [8, 8], [8, 8], sequence=1)
    for lasts, size in ((20, 8), (22, 8), (90, 32)):
        program.op("aten::mm", lasts, [size, 8], [8, 8], around=(NODE,), sequence=2)
        program.op("aten::mm", 5, [8, 8], [8, 8], around=(NODE,))
    found = [(one.place, one.total_ns, one.num_bytes) for one in explained(program).regions]
    assert found == [(1, 90, 512), (3, 21, 128), (2, 21, 128)]


def test_results_to_keep_first_save_most_time_per_byte():
    """The product saves 300 ns for 128 bytes, attention 500 ns for more, and the sum is short."""
    again = {"around": (NODE, "CheckpointFunctionBackward"), "sequence": 9}
    size = [1, 2, 16, 8]
    program = (
        Program()
        .op("aten::mm", 300, [8, 8], [8, 8], sequence=5)
        .op("aten::mm", 300, [8, 8], [8, 8], **again)
        .op("aten::_scaled_dot_product_flash_attention", 500, size, size, size, **again)
        .op("aten::add", 60, [1], [1], **again)
    )
    (saving,) = (one for one in explained(program).savings if one.what == Saves.NO_RECOMPUTATION)
    assert saving.size == "aten::mm on bf16[8, 8] · bf16[8, 8]"


def test_tensor_cores_save_seven_eighths_of_fp32_products():
    program = Program().op("aten::mm", 80, [8, 8], [8, 8], kernel="ampere_sgemm_128", kind="float")
    assert saved_of(explained(program))[Saves.TENSOR_CORES] == 70


def test_a_kernel_counts_for_one_change_only_so_that_savings_add_up():
    logits = [64, 10_000]
    program = (
        Program()
        .op("aten::mm", 50, [64, 32], [32, 10_000], sequence=1)
        .op("aten::copy_", 60, logits, logits, kind="float", sequence=2)
        .op("aten::_log_softmax", 80, logits, kind="float", sequence=3)
        .op("aten::gelu", 30, [512, 512], sequence=4)
        .op("aten::mul", 30, [512, 512], [512, 512], sequence=5)
    )
    result = explained(program)
    saved = saved_of(result)
    assert saved[Saves.MERGED_KERNELS] == 10  # not the softmax, which a fused loss replaces
    assert saved[Saves.FUSED_LOSS] > 0


def test_savings_of_one_segment_add_up_in_the_plan():
    size, logits = [1024, 1024], [64, 10_000]
    program = (
        Program()
        .op("aten::mm", 5000, [64, 32], [32, 10_000], sequence=1)
        .op("aten::_log_softmax", 1600, logits, kind="float", sequence=2)
        .op("aten::mm", 1000, size, size, sequence=3)
        .op("aten::gelu", 900, size, sequence=4)
        .op("aten::mul", 900, size, size, sequence=5)
    )
    program.step(0, 0, program.gpu)
    run, bench = make_run([program.rank()]), Workbench()
    measured_run = measure(run)
    stragglers = analyze_stragglers(run, measured_run.analyses, measured_run.step_time)
    analyze_whatif(run, measured_run.analyses, stragglers, MoeResult(), PipelineResult(), bench)
    simulation = bench.simulation
    assert simulation is not None
    steps = simulation.model.step_times([{Saves.FUSED_LOSS: 1.0}, {Saves.MERGED_KERNELS: 1.0}])
    (both,) = simulation.model.step_times([{Saves.FUSED_LOSS: 1.0, Saves.MERGED_KERNELS: 1.0}])
    gains = [program.gpu - step for step in steps]
    assert min(gains) > 0
    assert program.gpu - both == sum(gains)


def test_the_simulated_step_is_shorter_by_what_a_change_saves():
    program = attention(Program().op("aten::mm", 5000, [3072, 64], [64, 64]))
    program.step(0, 0, program.gpu)
    whatif = whatif_of(make_run([program.rank()]))
    gains = {one.what: one.recoverable_ns for one in whatif.without}
    assert gains[Saves.FUSED_ATTENTION] == 350


STEP = ("Optimizer.step#AdamW.step",)


def adam(program: Program, kernel: str = "elementwise_kernel") -> Program:
    """Two passes over one tensor that a fused optimizer would read and write once."""
    size = [1024, 1024]
    return program.op("aten::lerp_", 300, size, size, around=STEP, kernel=kernel, kind="float").op(
        "aten::addcdiv_", 400, size, size, size, around=STEP, kernel=kernel, kind="float"
    )


def test_a_fused_optimizer_reads_parameters_gradients_and_states_and_writes_all_but_gradients():
    # seven tensors at the rate of the copy
    program = adam(adam(Program()))
    program.op("aten::copy_", 100, [4096, 1024], [4096, 1024], kind="float", sequence=1)
    rate = 2 * 4096 * 1024 * 4 / 100
    kept = 2 * 7 * 1024 * 1024 * 4 / rate
    assert saved_of(explained(program))[Saves.FUSED_OPTIMIZER] == pytest.approx(1400 - kept, abs=1)


@pytest.mark.parametrize(("is_corrected", "idle_ns"), [(True, 5_000), (False, 0)])
def test_a_fused_optimizer_also_ends_the_idle_time_between_its_kernels(is_corrected, idle_ns):
    """Unless the profiler may be what makes the launches late."""
    program = adam(Program())
    program.gpu += 5_000
    adam(program)
    program.gpu += 7_000  # before what is no optimizer
    program.op("aten::copy_", 100, [4096, 1024], [4096, 1024], kind="float", sequence=1)
    tables = program.tables()
    found = measure_rank(tables, replace(context_of(program), is_corrected=is_corrected))
    (saving,) = (one for one in found.computation.savings if one.what == Saves.FUSED_OPTIMIZER)
    assert saving.idle_ns == idle_ns


def test_kernels_over_many_tensors_are_a_fused_optimizer_already():
    program = adam(Program(), kernel="multi_tensor_apply_kernel<Adam>")
    program.op("aten::copy_", 100, [4096, 1024], [4096, 1024], kind="float", sequence=1)
    assert Saves.FUSED_OPTIMIZER not in saved_of(explained(program))


def products(columns: int, lasts: int, *, rows: int = 1024, kind: str = BF16) -> ComputationResult:
    program = Program().op("aten::mm", 1000, [1024, 1024], [1024, 1024])
    program.op("aten::mm", lasts, [rows, 1024], [1024, columns], kind=kind)
    return explained(program)


def test_padding_saves_what_a_product_takes_longer_than_aligned_ones():
    assert saved_of(products(1023, 3000)) == {Saves.PADDED_PRODUCTS: 2000}
    assert products(1023, 3000).savings[0].size == "1023"


@pytest.mark.parametrize(
    ("columns", "lasts", "changes"),
    [
        (1024, 3000, {}),  # aligned
        (1023, 1000, {}),  # not slower
        (63, 3000, {}),  # too small for tensor cores in any case
        (1023, 3000, {"kind": "float"}),
    ],
)
def test_products_that_padding_does_not_help(columns: int, lasts: int, changes: dict[str, str]):
    result = products(columns, lasts, **changes)  # type: ignore[arg-type]
    assert Saves.PADDED_PRODUCTS not in saved_of(result)


def test_of_two_micro_batches_only_the_first_addition_goes_with_the_zeros():
    size = [64, 64]
    program = Program().op("aten::zero_", 10, size, around=("Optimizer.zero_grad#SGD.zero_grad",))
    for _ in range(2):
        program.op("aten::add_", 30, size, size, around=(NODE,))
    program.op("aten::add_", 50, [32, 32], [32, 32], around=(NODE,))
    assert saved_of(explained(program))[Saves.UNSET_GRADIENTS] == 10 + 30


def test_casts_around_a_product_are_part_of_mixed_precision():
    size = [256, 256]
    program = Program()
    for name in ("aten::mm", "aten::native_layer_norm"):
        program.cast(size, BF16, "float").op(name, 30, size, size, kind="float", sequence=2)
        program.cast(size, "float", BF16)
    assert saved_of(explained(program))[Saves.NARROW_CASTS] == 20 + 15 + 20


def test_noise_that_is_no_mask_is_left_alone():
    size = [512, 512]
    program = Program().op("aten::normal_", 30, size, sequence=1)
    program.op("aten::mm", 30, size, size, sequence=2)
    assert Saves.FUSED_DROPOUT not in saved_of(explained(program))


def test_indexing_at_the_speed_of_memory_is_left_alone():
    def gather(lasts: int) -> dict[str, int]:
        program = Program().op("aten::copy_", 100, [4096, 64], [4096, 64], sequence=1)
        program.op("aten::scatter_add", lasts, [9, 64], [], [512, 64], [512, 64], sequence=2)
        return saved_of(explained(program))

    moved = 4 * 512 * 64 * 2  # indices, rows, and those that they are added to, which are written
    at_best = 100 * moved / (2 * 4096 * 64 * 2)
    assert Saves.SPREAD_INDICES not in gather(round(1.9 * at_best))
    assert gather(200)[Saves.SPREAD_INDICES] == pytest.approx(200 - at_best, abs=1)


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("aten::addmm", "gemm"),
        ("aten::_scaled_mm", "gemm"),
        ("aten::_scaled_dot_product_efficient_attention_backward", "attention"),
        ("FlashAttnFuncBackward", "attention"),
        ("aten::convolution_backward", "convolution"),
        ("aten::native_layer_norm", "normalisation"),
        ("_RMSNormFnBackward", "normalisation"),
        ("aten::_log_softmax", "softmax"),
        ("aten::nll_loss_forward", "softmax"),
        ("aten::index_select", "embedding"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::native_dropout", "random"),
        ("aten::_fused_adamw_", "optimizer"),
    ],
)
def test_operators_that_decide(operator: str, category: str):
    assert tuple(categories())[strong(operator)] == category


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("aten::copy_", "copy"),
        ("aten::cat", "copy"),
        ("aten::sum", "reduction"),
        ("aten::mul", "elementwise"),
        ("vllm::unified_attention_with_output", None),
    ],
)
def test_operators_that_others_are_made_of(operator: str, category: str | None):
    if category is None:
        assert tuple(categories())[strong(operator)] != "embedding"
    else:
        assert strong(operator) == -1
        assert tuple(categories())[weak(operator)] == category


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16>", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention"),
        ("void implicit_convolve_sgemm<float, float, 1024>", "convolution"),
        ("volta_scudnn_128x64_stridedB_interior_nn_v1", "convolution"),
        ("triton_per_fused_native_layer_norm_add_0", "normalisation"),
        ("triton_poi_fused_gelu_mul_3", "elementwise"),
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_mul_1", "elementwise"),
        ("triton_tem_fused_convolution_1", "convolution"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_tem_fused_addmm_relu_4", "gemm"),
        ("triton_poi_fused__to_copy_transpose_5", "copy"),
        ("triton_poi_fused__to_copy_add_5", "elementwise"),
        ("void tensorrt_llm::quantize_with_block_size<2>(flashinfer::Layout)", "copy"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<1>", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<float>", "copy"),
        ("void moe::dev::finalize::finalizeKernelVecLoad<4>", "embedding"),
        ("triton_red_fused_sum_4", "reduction"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy", "copy"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>", "optimizer"),
        ("a kernel of somebody", "other"),
    ],
)
def test_kernels_that_no_operator_launched(kernel: str, category: str):
    assert tuple(categories())[of_kernel(kernel)] == category
