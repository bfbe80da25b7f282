"""Computation by module, under CUDA graphs, and with sizes that other rows complete."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.api import analyze
from distprof.hardware import load_sheet
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.run.run import Device
from distprof.sections.computation import OUTSIDE_MODULES
from distprof.sections.computation.measure import analyze_computation
from distprof.sections.computation.modules import MOST_PATHS
from distprof.sections.context import RankAnalyses
from tests.builders import MAIN_THREAD, RankBuilder, make_run
from tests.sections.measured import measured
from tests.sections.test_computation import (
    BACKWARD_THREAD,
    NODE,
    Program,
    explained,
    inputs,
    times_of,
)


class Model(Program):
    """A program whose operators run inside calls of modules."""

    def inside(self, *modules: str, thread: str = MAIN_THREAD, **op) -> "Model":
        """An operator inside these modules, outermost first."""
        for depth, module in enumerate(modules):
            self.module(module, self.now + depth, self.now + 99 - depth, thread=thread)
        name, lasts = op.pop("name", "aten::mul"), op.pop("lasts")
        start = self.now
        self.now += len(modules)
        self.op(name, lasts, thread=thread, **op)
        self.now = start + 100
        return self

    def module(self, name: str, start: int, end: int, thread: str = MAIN_THREAD) -> None:
        self.call(f"nn.Module: {name}", start, end, category="python_function", thread=thread)


def tree_of(rank: RankBuilder) -> list[tuple]:
    return [
        ("· " * row.depth + row.name, row.num_modules, row.num_calls, row.total_ns, row.self_ns)
        for row in explained(rank).modules
    ]


def test_modules_of_one_class_count_together_and_contain_what_they_call():
    model = (
        Model()
        .inside("GPT_0", "Block_0", "Linear_0", lasts=40)
        .inside("GPT_0", "Block_0", lasts=5)
        .inside("GPT_0", "Block_1", "Linear_1", lasts=30)
        .inside("GPT_0", lasts=2)
        .inside(lasts=9)
    )
    assert tree_of(model) == [
        ("GPT", 1, 4, 77, 2),
        ("· Block", 2, 3, 75, 5),
        ("· · Linear", 2, 2, 70, 70),
        (OUTSIDE_MODULES, 0, 0, 9, 9),
    ]


def test_backward_kernels_belong_to_the_module_of_their_forward_operator():
    """The last operator with a number made the node; earlier ones only came before it."""
    model = (
        Model()
        .inside("Net_0", "Norm_0", lasts=1, sequence=4)
        .inside("Net_0", "Linear_0", lasts=10, sequence=4)
        .inside("Net_0", "Head_0", lasts=3, sequence=5)
    )
    for number, lasts in ((5, 6), (4, 20)):
        start = model.now
        model.operator(NODE, start, start + 99, thread=BACKWARD_THREAD, sequence=number)
        model.op("aten::mm", lasts, thread=BACKWARD_THREAD)
    model.inside("Net_0", "Other_0", lasts=7, sequence=4)  # a later step begins to count again
    rows = {row.name: row for row in explained(model).modules}
    assert (rows["Linear"].total_ns, rows["Linear"].backward_ns) == (30, 20)
    assert (rows["Head"].total_ns, rows["Head"].backward_ns) == (9, 6)
    assert (rows["Norm"].total_ns, rows["Other"].total_ns) == (1, 7)
    assert rows["Net"].backward_ns == 26


def test_a_recomputed_module_is_where_its_first_call_was():
    model = Model().inside("Net_0", "Checkpoint_0", "Block_7", lasts=10)
    start = model.now
    model.operator(NODE, start, start + 99, thread=BACKWARD_THREAD)
    model.inside("Block_7", lasts=12, thread=BACKWARD_THREAD)
    assert tree_of(model)[:3] == [
        ("Net", 1, 1, 22, 0),
        ("· Checkpoint", 1, 1, 22, 0),
        ("· · Block", 1, 2, 22, 22),
    ]


def test_recomputed_regions_are_named_by_the_outermost_modules_that_they_call():
    model = Model().inside("Net_0", "Block_0", lasts=10, sequence=1)
    for modules in (["Block_1", "Linear_3"], ["Norm_0"], []):
        start = model.now
        model.operator(NODE, start, start + 299, thread=BACKWARD_THREAD)
        model.now += 10
        model.inside(*modules, lasts=12, sequence=2, thread=BACKWARD_THREAD)
        if modules == ["Norm_0"]:
            model.inside("Block_0", lasts=12, sequence=2, thread=BACKWARD_THREAD)
        model.now = start + 300
    names = {one.place: one.name for one in explained(model).regions}
    assert names == {3: "Block_1", 2: "Norm_0 to Block_0", 1: ""}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("model.layers.3.mlp", "model.layers.*.mlp"),
        ("Optimizer.step#AdamW.step", None),
        ("## forward ##", None),
        ("DistributedDataParallel.forward", None),
        ("loss", None),
    ],
)
def test_annotations_stand_for_modules_only_if_they_look_like_them(name, module):
    program = Program()
    program.annotation(name, 0, 100)
    program.op("aten::mul", 10)
    found = [row.name for row in explained(program).modules]
    assert found == ([module, OUTSIDE_MODULES] if module else [])


def test_annotations_stand_for_nothing_beside_modules():
    model = Model()
    model.annotation("model.layers.3", 0, 100)
    assert [row[0] for row in tree_of(model.inside("Net_0", lasts=4))] == ["Net", OUTSIDE_MODULES]


modules = st.lists(st.sampled_from(("A_0", "A_1", "B_0", "C_0")), max_size=4)


@given(
    st.lists(st.tuples(modules, st.integers(1, 50), st.integers(-1, 3), st.booleans()), max_size=12)
)
def test_modules_add_up_to_the_computation(calls):
    model = Model()
    for stack, lasts, number, is_backward in calls:
        if is_backward:
            start = model.now
            model.operator(NODE, start, start + 99, thread=BACKWARD_THREAD, sequence=number)
            model.inside(*stack, lasts=lasts, thread=BACKWARD_THREAD)
        else:
            model.inside(*stack, lasts=lasts, sequence=number)
    if not calls:
        model.inside(lasts=1)
    result = explained(model)
    rows = result.modules
    assert sum(row.self_ns for row in rows) == (result.total_ns if rows else 0)
    for place, row in enumerate(rows):
        below = []
        for inner in rows[place + 1 :]:
            if inner.depth <= row.depth:
                break
            below.append(inner)
        direct = sum(inner.total_ns for inner in below if inner.depth == row.depth + 1)
        assert row.total_ns == row.self_ns + direct
        assert 0 <= row.backward_ns <= row.total_ns


def test_a_trace_of_countless_modules_keeps_a_bounded_tree():
    model = Model()
    for number in range(MOST_PATHS + 50):
        model.inside("Net_0", f"Class{number}x", lasts=1)
    result = explained(model)
    assert len(result.modules) == MOST_PATHS + 1
    assert result.modules[0].self_ns == 51
    assert result.modules[-1].total_ns == 0


def test_modules_between_an_operator_and_its_launch_do_not_hide_it():
    model = Model()
    model.operator("MyFunction", 0, 100)
    model.module("Inner_0", 10, 90)
    model.kernel("somebody's kernel", 0, 8, launched=(20, 30))
    (row,) = explained(model).operators
    assert row.name == "MyFunction"


# Kernels too small for their GPU ------------------------------------------------------------------


def filled(*blocks: int, multiprocessors: int | None = 100):
    rank = RankBuilder()
    for number, count in enumerate(blocks):
        start = 100 * number
        rank.operator(f"aten::op{number}", start, start + 90)
        rank.kernel("k", start, start + 50, launched=(start + 10, start + 20), blocks=count)
    device = Device(name="some GPU", num_multiprocessors=multiprocessors)
    run = make_run([replace(rank.rank(), device=device)])
    return analyze_computation(run, RankAnalyses.of([measured(rank)]), load_sheet())


def test_kernels_with_fewer_blocks_than_multiprocessors_leave_some_idle():
    result = filled(25, 400, -1, 90, 50, 49)
    ratios = [row.filled_ratio for row in sorted(result.operators, key=lambda row: row.name)]
    assert ratios == [0.25, 1, None, 0.9, 0.5, 0.49]
    assert result.small_ratio == 0.4


def test_nothing_is_known_of_a_gpu_whose_multiprocessors_were_not_recorded():
    result = filled(25, multiprocessors=None)
    assert (result.operators[0].filled_ratio, result.small_ratio) == (None, None)


# CUDA graphs -------------------------------------------------------------------------------------


def test_kernels_of_a_cuda_graph_have_no_operator_whatever_is_around_its_launch():
    rank = RankBuilder().operator("aten::mm", 0, 100, inputs=inputs([8, 8], [8, 8]))
    rank.kernel("softmax_warp_forward", 0, 30, launched=(10, 20))
    rank.host[-1]["name"] = "cudaGraphLaunch"
    rank.kernel("gemm", 30, 40, launched=(30, 40))
    result = explained(rank)
    assert times_of(result) == {"softmax": 30, "gemm": 10}
    assert {row.name: row.flop for row in result.operators} == {
        "softmax_warp_forward": None,
        "aten::mm": 1024,
    }
    assert result.graph_ratio == 0.75


@pytest.mark.parametrize("region", ["Torch-Compiled Region: 0/0", "CompiledFunctionBackward"])
def test_a_compiled_function_is_no_operator_of_the_kernels_inside_it(region):
    rank = RankBuilder().operator(region, 0, 100, inputs=inputs([8, 8]))
    rank.kernel("triton_poi_fused_relu_1", 0, 30, launched=(10, 20))
    rank.operator("extern_kernels.mm", 30, 90)
    rank.operator("aten::mm", 40, 80, inputs=inputs([8, 8], [8, 8]))
    rank.kernel("gemm", 30, 50, launched=(50, 60))
    rows = [(row.name, row.category, row.inputs) for row in explained(rank).operators]
    assert rows == [
        ("triton_poi_fused_relu_1", "elementwise", ""),
        ("aten::mm", "gemm", "bf16[8, 8] · bf16[8, 8]"),
    ]


# Sizes that other rows complete ------------------------------------------------------------------


def sized(*sizes: list[int]) -> str:
    """Inputs without values and types, as PyTorch 1.8 wrote them."""
    return json.dumps([list(sizes), [], []])


IMAGE, FILTER, MADE = [2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 4, 4]
FLOP = 2 * 2 * 4 * 4 * (4 * 3 * 3 * 3)


def convolutions(*gradients: list[int]) -> RankBuilder:
    rank = RankBuilder().operator("aten::convolution", 0, 90, inputs=sized(IMAGE, FILTER, []))
    rank.kernel("fprop", 0, 10, launched=(10, 20))
    for number, gradient in enumerate(gradients, 1):
        start = 100 * number
        rank.operator(
            "aten::cudnn_convolution_backward",
            start,
            start + 90,
            inputs=sized(IMAGE, gradient, FILTER),
        )
        rank.operator(
            "aten::cudnn_convolution_backward_input",
            start + 5,
            start + 40,
            inputs=sized([], gradient, FILTER),
        )
        rank.kernel("dgrad", start, start + 20, launched=(start + 10, start + 12))
        rank.operator(
            "aten::cudnn_convolution_backward_weight",
            start + 45,
            start + 80,
            inputs=sized([], gradient, IMAGE),
        )
        rank.kernel("wgrad", start + 20, start + 50, launched=(start + 50, start + 52))
    return rank


def flop_of(rank: RankBuilder) -> dict[str, int | None]:
    return {row.name.removeprefix("aten::"): row.flop for row in explained(rank).operators}


def test_the_gradient_shows_the_output_of_a_convolution_without_a_recorded_stride():
    assert flop_of(convolutions(MADE)) == {
        "convolution": FLOP,
        "cudnn_convolution_backward_input": FLOP,
        "cudnn_convolution_backward_weight": FLOP,
    }


def test_gradients_that_contradict_each_other_show_nothing():
    assert flop_of(convolutions(MADE, [2, 4, 8, 8]))["convolution"] is None


def test_a_convolution_that_enlarges_its_input_is_transposed_and_not_counted():
    assert flop_of(convolutions([2, 4, 16, 16]))["convolution"] is None


def test_an_outer_counted_operator_has_the_kernels_of_inner_counted_ones():
    size = [1, 2, 16, 8]
    rank = RankBuilder().operator(
        "aten::_scaled_dot_product_flash_attention", 0, 90, inputs=inputs(size, size, size)
    )
    rank.operator("aten::_flash_attention_forward", 10, 80, inputs=inputs(size, size, size))
    rank.kernel("flash", 0, 10, launched=(20, 30))
    assert flop_of(rank) == {"_scaled_dot_product_flash_attention": 4 * 2 * 16 * 16 * 8}


def test_ranks_without_modules_leave_the_tree_of_the_others_whole():
    assert measured(Model().inside("Net_0", lasts=3)).computation.modules[0].path == ("Net",)
    assert measured(Program().op("aten::mul", 4)).computation.modules == ()


# Beside everything else ---------------------------------------------------------------------------


def test_calls_of_modules_change_nothing_but_the_tree(tmp_path):
    trace = json.loads(gzip.decompress(WITH_STACKS.read_bytes()))
    with_modules = analyze_events(trace, tmp_path / "with")
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if not event["name"].startswith("nn.Module: ")
    ]
    without = analyze_events(trace, tmp_path / "without")
    assert with_modules.computation.modules
    assert replace(with_modules.computation, modules=()) == without.computation
    for name in ("breakdown", "idle", "perturbation", "overlap", "stragglers", "whatif", "kernels"):
        assert getattr(with_modules, name) == getattr(without, name), name


WITH_STACKS = Path(__file__).parents[1] / "golden/kineto/tp8-b200-rank0/eager_trace.json.gz"


def analyze_events(trace, folder):
    folder.mkdir()
    path = folder / "rank0.json"
    path.write_text(json.dumps(trace))
    return analyze(open_run(str(path), IngestOptions(cache_dir=str(folder / "cache"))))
