"""Which operators of two runs correspond, and that their changes add up."""

from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.summary_file import StepParts
from distprof.sections.computation import REST, ComputationResult, OperatorRow
from distprof.verbs.compare.operators import compare_operators


def operator(name, total_ns, inputs="", *, part="forward", category="gemm", kernel="k", calls=4):
    return OperatorRow(
        name=name,
        category=category,
        part=part,
        num_calls=calls,
        total_ns=total_ns,
        inputs=inputs,
        kernel=kernel,
    )


def computed(*rows, ranks=(0, 1), steps=2, mean_ns=None):
    """A run, and its mean step over all ranks if those of ``ranks`` are not all."""
    result = ComputationResult(
        ranks=ranks,
        num_steps=steps,
        total_ns=sum(row.total_ns for row in rows),
        operators=rows,
    )
    names = StepParts.__struct_fields__
    parts = StepParts(**{**dict.fromkeys(names, 0), "computation_ns": mean_ns or 0})
    return result, None if mean_ns is None else parts


def matched(first, second):
    found = compare_operators(computed(*first), computed(*second))
    return {(one.match, one.name, one.second_name): one.change_ns for one in found}


def test_another_gpu_runs_other_kernels_of_the_same_operators():
    ampere = operator("aten::mm", 4_000, "bf16[8, 8]", kernel="sm80_xmma_gemm_bf16")
    hopper = operator("aten::mm", 2_000, "bf16[8, 8]", kernel="nvjet_sm90_tst_64x64")
    (found,) = compare_operators(computed(ampere), computed(hopper))
    assert (found.match, found.change_ns) == ("same", -500)
    assert (found.first_kernel, found.second_kernel) == (ampere.kernel, hopper.kernel)


def test_passes_stay_apart_where_both_runs_know_them():
    rows = [operator("aten::mm", 4_000, "a"), operator("aten::mm", 8_000, "a", part="backward")]
    slower = [rows[0], operator("aten::mm", 8_400, "a", part="backward")]
    found = compare_operators(computed(*rows), computed(*slower))
    assert [(one.part, one.change_ns) for one in found] == [("backward", 100), ("forward", 0)]


def test_a_pass_that_only_one_run_knows_does_not_separate_an_operator():
    one = operator("aten::mm", 4_000, "a", part="other")
    two = [operator("aten::mm", 4_000, "a"), operator("aten::mm", 4_000, "a", part="backward")]
    assert matched([one], two) == {("same", "aten::mm", ""): 1_000}


def test_other_sizes_and_other_operators_of_the_same_kind_are_told_apart():
    first = [
        operator("aten::mm", 4_000, "bf16[8, 8]"),
        operator("aten::addmm", 8_000, "bf16[8]", part="backward"),
        operator("aten::add", 400, category="elementwise"),
    ]
    second = [
        operator("aten::mm", 8_000, "bf16[16, 8]"),
        operator("aten::linear_backward", 4_000, part="backward"),
        operator("aten::mul", 800, category="elementwise"),
    ]
    assert matched(first, second) == {
        ("reshaped", "aten::mm", ""): 1_000,
        ("replaced", "aten::addmm", "aten::linear_backward"): -1_000,
        ("vanished", "aten::add", ""): -100,
        ("appeared", "aten::mul", ""): 200,
    }


def test_a_trace_without_operators_is_matched_by_kernel():
    bare = operator("sm80_gemm", 4_000, kernel="sm80_gemm", part="other")
    known = operator("aten::mm", 8_000, "bf16[8, 8]", kernel="sm80_gemm")
    assert matched([bare], [known]) == {("same", "sm80_gemm", "aten::mm"): 1_000}


def elementwise(name, ns, part="forward"):
    return operator(name, ns, category="elementwise", part=part)


def test_a_fused_kernel_is_compared_with_the_operators_that_its_name_lists():
    eager = [
        elementwise("aten::add_", 4_000),
        elementwise("aten::gelu", 8_000),
        elementwise("aten::copy_", 400),
        elementwise("aten::gelu", 2_000, "backward"),
        elementwise("aten::gelu_backward", 12_000, "backward"),
        elementwise("aten::tanh", 40),
    ]
    compiled = [
        elementwise("triton_poi_fused__to_copy_add_gelu_3", 4_000),
        elementwise("triton_poi_fused_gelu_gelu_backward_0", 4_000, "backward"),
    ]
    found = matched(eager, compiled)
    assert found == {
        ("fused", "aten::gelu + aten::add_ + aten::copy_", compiled[0].name[:-2]): -2_100,
        ("fused", "aten::gelu_backward + aten::gelu", compiled[1].name[:-2]): -2_500,
        ("vanished", "aten::tanh", ""): -10,
    }
    assert sorted(matched(compiled, eager).values()) == sorted(-ns for ns in found.values())


def test_a_name_that_contains_that_of_another_operator_does_not_list_it():
    eager = [elementwise("aten::norm", 4_000), elementwise("aten::gelu", 4_000)]
    compiled = [elementwise("triton_per_fused_native_layer_norm_gelu_backward_0", 4_000)]
    assert {match for match, _, _ in matched(eager, compiled)} == {"vanished", "appeared"}


def test_kernels_that_share_an_operator_belong_together():
    eager = [elementwise(f"aten::{name}", 4_000) for name in ("add", "mul", "sub")]
    compiled = [
        elementwise("triton_poi_fused_add_mul_0", 4_000),
        elementwise("triton_poi_fused_mul_sub_1", 4_000),
    ]
    ((match, *_),) = matched(eager, compiled)
    assert match == "fused"


def test_numbers_that_the_compiler_gives_kernels_do_not_matter():
    one, other = (elementwise(f"triton_poi_fused_add_{n}", 4_000) for n in (1, 7))
    assert matched([one], [other]) == {("same", "triton_poi_fused_add", ""): 0}


def test_what_the_other_list_may_have_left_out_is_part_of_the_rest():
    first = [operator("aten::mm", 8_000, "a"), operator("aten::bmm", 400), operator(REST, 4_000)]
    second = [
        operator("aten::mm", 8_000, "a"),
        operator("aten::dot", 4_000, category="reduction"),
        operator("aten::abs", 300, category="elementwise"),
    ]
    found = matched(first, second)
    assert found.pop(("rest", REST, "")) == 75 - 1_000
    assert found == {
        ("same", "aten::mm", ""): 0,
        ("vanished", "aten::bmm", ""): -100,
        ("appeared", "aten::dot", ""): 1_000,
    }


def test_the_rest_completes_the_computation_of_ranks_that_were_not_read():
    first = computed(operator("aten::mm", 4_000), mean_ns=1_500)
    second = computed(operator("aten::mm", 8_000), mean_ns=1_900)
    found = compare_operators(first, second)
    assert [(one.match, one.change_ns) for one in found] == [("same", 1_000), ("rest", -600)]


def test_without_operators_of_both_runs_there_is_nothing_to_compare():
    assert compare_operators(computed(operator("aten::mm", 1)), computed()) == ()


NAMES = ("aten::mm", "aten::addmm", "aten::add_", "aten::gelu", "triton_poi_fused_add_gelu_0", REST)
ROWS = st.builds(
    operator,
    st.sampled_from(NAMES),
    st.integers(1, 1 << 40),
    st.sampled_from(("", "bf16[2]", "bf16[4]")),
    part=st.sampled_from(("forward", "backward", "other")),
    category=st.sampled_from(("gemm", "elementwise")),
    kernel=st.sampled_from(("triton_poi_fused_add_gelu_0", "sm80", "sm90")),
)
SIDES = st.builds(
    lambda rows, ranks, steps, mean: computed(
        *rows, ranks=tuple(range(ranks)), steps=steps, mean_ns=mean
    ),
    st.lists(ROWS, min_size=1, max_size=9),
    st.integers(1, 3),
    st.integers(1, 7),
    st.none() | st.integers(0, 1 << 40),
)


@given(SIDES, SIDES)
def test_changes_add_up_to_the_change_of_computation(first, second):
    found = compare_operators(first, second)
    for side, field in ((first, "first_ns"), (second, "second_ns")):
        result, parts = side
        whole = parts.computation_ns if parts else result.total_ns // result.num_samples
        assert sum(getattr(one, field) for one in found) == whole
    assert all(one.change_ns == one.second_ns - one.first_ns for one in found)


@given(SIDES)
def test_a_run_compared_with_itself_did_not_change(side):
    assert not any(one.change_ns for one in compare_operators(side, side))
