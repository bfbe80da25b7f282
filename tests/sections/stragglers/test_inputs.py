"""Larger inputs or a slow GPU: by the sizes that operators of each rank get, ranks drawn by hand.

All grids have as many thread blocks as the GPU has multiprocessors, so they show nothing.
"""

import json

import pytest

from distprof.schema import ABSENT
from distprof.sections.computation import RankComputation
from distprof.sections.computation.shapes import compare_sizes
from distprof.terms import StragglerCause, StragglerPattern
from tests.builders import RankBuilder, identity_clock, make_run
from tests.sections.joined import join_by_seq, stragglers_of
from tests.sections.measured import measured

US = 1_000
RANKS, STEPS, STEP = (0, 1, 2, 3), 8, 20_000 * US
WIDTH = 4096
ATTENTION = "aten::_scaled_dot_product_flash_attention"


def inputs(*sizes):
    return json.dumps([sizes, ["c10::BFloat16"] * len(sizes), [""] * len(sizes)])


def layer(tokens, *, slow=1.0, products=1.0):
    """Operators, their inputs and the time of their kernels: 4 ms on 4096 tokens.

    ``slow`` lengthens all kernels, ``products`` matrix products alone.
    """
    share, heads = tokens / 4096, (1, 32, tokens, 128)
    return [
        ("aten::mm", inputs((tokens, WIDTH), (WIDTH, WIDTH)), slow * products * 2_200 * share),
        (ATTENTION, inputs(heads, heads, heads), slow * 800 * share**2),
        ("aten::mul", inputs((tokens, WIDTH), (tokens, WIDTH)), slow * 1_000 * share),
    ]


def rank_of(number, operators, *, has_sizes=True, blocks=132):
    """One rank that runs these operators twice in each step, and reduces gradients at its end."""
    builder = RankBuilder(number)
    for step in range(STEPS):
        low = step * STEP
        builder.step(step, low, low + STEP)
        launch, gpu = low + 100, low + 1_000
        for name, sizes, us in (*operators, *operators):
            builder.operator(name, launch, launch + 80, inputs=sizes if has_sizes else "")
            end = gpu + round(us * US)
            builder.kernel(
                f"k_{name}", gpu, end, launched=(launch + 20, launch + 40), blocks=blocks
            )
            launch, gpu = launch + 100, end
        builder.comm("nccl", gpu, low + STEP - 100, ranks=RANKS, seq=step)
    return builder


def straggler(usual, late, **kwargs):
    """Rank 3, which runs ``late`` where the other ranks run ``usual``."""
    ranks = [rank_of(one, late if one == 3 else usual, **kwargs).rank() for one in RANKS]
    run = make_run(
        ranks, steps=range(STEPS), matches=join_by_seq(ranks)[0], clock=identity_clock(RANKS)
    )
    result, _ = stragglers_of(run)
    return next(one for one in result.ranks if one.rank == 3)


def test_larger_inputs_are_named_with_operator_and_sizes():
    found = straggler(layer(4096), layer(4833))
    assert (found.cause, found.detail) == (StragglerCause.MORE_WORK, "inputs")
    (sentence,) = (text for text in found.evidence if "instead of" in text)
    assert sentence == (
        "calls of aten::mm have 1.18 times the FLOP of its peers', "
        "for example bf16[4833, 4096] instead of bf16[4096, 4096]"
    )


def test_a_slow_gpu_with_the_same_inputs_has_no_more_work():
    found = straggler(layer(4096), layer(4096, slow=1.18))
    assert found.cause is StragglerCause.SLOW_DEVICE
    assert (
        "calls with the same inputs take 1.18 times as long as its peers', most of it in aten::mm"
        in found.evidence
    )
    assert not any("instead of" in text for text in found.evidence)


def test_hardly_larger_inputs_do_not_excuse_a_slow_gpu():
    found = straggler(layer(4096), layer(4140, slow=1.3))
    assert found.cause is StragglerCause.SLOW_DEVICE


@pytest.mark.parametrize(
    ("has_sizes", "cause"), [(True, StragglerCause.SLOW_DEVICE), (False, StragglerCause.UNKNOWN)]
)
def test_equal_inputs_decide_where_half_of_the_kernels_are_slower(has_sizes, cause):
    late = layer(4096, products=1.3)
    found = straggler(layer(4096), late, has_sizes=has_sizes, blocks=ABSENT)
    assert found.cause is cause
    assert any("kernel counts and inputs are equal" in one for one in found.evidence) is has_sizes


def test_without_sizes_larger_inputs_look_like_a_slow_gpu():
    """What the other tests would find if sizes did not count."""
    found = straggler(layer(4096), layer(4833), has_sizes=False)
    assert found.cause is StragglerCause.SLOW_DEVICE


def test_a_healthy_job_has_no_straggler():
    found = straggler(layer(4096), layer(4096))
    assert (found.pattern, found.evidence) == (StragglerPattern.NONE, ())


# Inputs of two ranks ------------------------------------------------------------------------------


def computation(operators) -> RankComputation:
    return measured(rank_of(0, operators)).computation


def compared(usual, own):
    return compare_sizes(computation(own), [computation(usual)])


def test_time_of_larger_inputs_is_that_of_their_work():
    """2,200 us and 1,000 us grow by the tokens, 800 us by their square."""
    found = compared(layer(4096), layer(6144))
    assert found.larger_ratio == pytest.approx((0.5 * 3_200 + 1.25 * 800) / 4_000, rel=1e-3)
    assert found.larger_share == 1
    assert not found.are_equal


def test_sizes_are_compared_with_those_of_the_likest_call():
    """The other ranks' longest product is one of another layer."""
    narrow, wide = (WIDTH, WIDTH), (WIDTH, 2 * WIDTH)
    usual = [("aten::mm", inputs((4096, WIDTH), one), 100) for one in (narrow, wide)]
    own = [
        ("aten::mm", inputs((8192, WIDTH), narrow), 900),
        ("aten::mm", inputs((4500, WIDTH), wide), 300),
    ]
    found = compared([*usual, ("aten::mm", inputs((9, 9), (9, 9)), 800)], own)
    assert found.larger.endswith("for example bf16[8192, 4096] instead of bf16[4096, 4096]")


def test_inputs_explain_no_more_than_their_operators_take_longer():
    larger = [("aten::mm", inputs((8192, WIDTH), (WIDTH, WIDTH)), 2_500), *layer(4096)[1:]]
    assert compared(layer(4096), larger).larger_ratio == pytest.approx(300 / 4_000)


def test_fewer_and_larger_calls_of_the_same_work_are_no_larger_inputs():
    halves = [layer(2048)[0]] * 2
    whole = [layer(4096)[0]]
    assert compared(halves, whole).larger_ratio == 0
    assert not compared(halves, whole).are_equal


def test_inputs_are_equal_only_if_as_many_calls_have_them():
    usual = layer(4096)
    assert compared(usual, layer(4096, slow=2)).are_equal
    assert not compared(usual, [*usual, usual[0]]).are_equal


def test_inputs_of_a_small_part_of_the_computation_show_nothing_of_the_rest():
    unknown = ("aten::unknown", "", 9_000)
    assert not compared([*layer(4096), unknown], [*layer(4096), unknown]).are_equal


def test_an_operator_of_unknown_work_may_grow_with_the_square_of_its_elements():
    usual = [("mine::attention", inputs((1, 1024)), 1_000)]
    own = [("mine::attention", inputs((1, 2048)), 4_000)]
    assert compared(usual, own).larger_ratio == pytest.approx(3)


def test_without_common_operators_nothing_is_known():
    assert compare_sizes(computation(layer(4096)), []) is None
    assert compared(layer(4096)[:1], layer(4096)[1:]) is None
