"""What happens in which step follows from the options alone."""

from __future__ import annotations

from distprof_probes.options import ProbeOptions
from distprof_probes.plan import make_plan
from hypothesis import given
from hypothesis import strategies as st

from distprof.sections.stragglers.slowness import LEAST_FREEDOM

options = st.builds(
    ProbeOptions,
    mode=st.sampled_from(["window", "always-on", "off"]),
    start_step=st.integers(-1, 60),
    num_steps=st.integers(1, 10),
    warmup=st.integers(0, 6),
    total_steps=st.integers(0, 80),
    settle_steps=st.integers(0, 6),
    light_steps=st.integers(0, 6),
    measure_overhead=st.booleans(),
    overhead_block=st.integers(1, 4),
    overhead_rounds=st.integers(0, 6),
)


def test_the_default_plan() -> None:
    plan = make_plan(ProbeOptions())

    assert plan.settled == 3
    assert sorted(plan.paused)[:6] == [4, 5, 8, 9, 12, 13]
    assert plan.light_warmup == range(15, 16)
    assert plan.light == range(16, 20)
    assert plan.warmup == range(20, 23)
    assert plan.traced == range(23, 27)
    assert plan.window == range(15, 27)
    assert sorted(plan.paused)[6:10] == [29, 30, 33, 34]
    assert len(plan.pairs) == 32


def test_without_measuring_overhead_the_window_comes_soon() -> None:
    plan = make_plan(ProbeOptions(measure_overhead=False))

    assert (plan.warmup, plan.traced) == (range(1, 4), range(4, 8))
    assert not plan.paused


def test_a_short_job_is_traced_earlier_and_a_very_short_one_at_its_end() -> None:
    assert make_plan(ProbeOptions(total_steps=27)).traced == range(23, 27)
    assert make_plan(ProbeOptions(total_steps=26)).traced == range(19, 23)  # one round less
    assert make_plan(ProbeOptions(total_steps=23)).light == range(12, 16)
    assert make_plan(ProbeOptions(total_steps=22)).traced == range(14, 18)
    assert not make_plan(ProbeOptions(total_steps=22)).light
    assert make_plan(ProbeOptions(total_steps=18)).traced == range(14, 18)
    assert make_plan(ProbeOptions(total_steps=17)).traced == range(4, 8)
    assert make_plan(ProbeOptions(total_steps=5)).traced == range(1, 5)
    assert make_plan(ProbeOptions(total_steps=2)).traced == range(4)


def test_a_round_is_with_without_without_with() -> None:
    plan = make_plan(ProbeOptions(mode="always-on", overhead_rounds=1, overhead_block=2))

    assert plan.pairs == (
        (range(3, 5), range(5, 7)),
        (range(9, 11), range(7, 9)),
    )


def test_a_rank_that_does_not_trace_rests_in_the_same_steps() -> None:
    tracing, other = make_plan(ProbeOptions()), make_plan(ProbeOptions(), is_traced=False)

    assert other.paused == tracing.paused
    assert not other.traced
    assert not other.warmup
    assert not other.light


@given(options)
def test_probes_never_rest_while_the_profiler_is_armed_or_right_after(given: ProbeOptions) -> None:
    plan = make_plan(given)

    touched = set(range(plan.window.start, plan.window.stop + 1)) if plan.window else set()
    assert touched >= {*plan.light_warmup, *plan.light, *plan.warmup, *plan.traced}
    assert not plan.paused & touched
    assert not any(step in touched for pair in plan.pairs for block in pair for step in block)
    assert not any(plan.is_quiet(step) for step in touched)


@given(options)
def test_every_pair_is_of_neighbours_of_equal_length_after_settling(given: ProbeOptions) -> None:
    plan = make_plan(given)

    assert len(plan.pairs) <= 2 * given.overhead_rounds
    for with_, without in plan.pairs:
        assert len(with_) == len(without) == given.overhead_block
        assert without.start - with_.start in (given.overhead_block, -given.overhead_block)
        assert min(with_.start, without.start) >= plan.settled
        assert set(without) <= plan.paused
        assert not set(with_) & plan.paused
        if given.total_steps:
            assert max(with_.stop, without.stop) <= given.total_steps


@given(options)
def test_the_window_is_as_long_as_asked_and_lies_within_a_job_of_known_length(
    given: ProbeOptions,
) -> None:
    plan = make_plan(given)

    if given.mode != "window":
        assert not plan.traced
        return
    assert len(plan.traced) == given.num_steps
    assert plan.warmup.stop == plan.traced.start
    if given.start_step >= 0:
        assert plan.traced.start == given.start_step
    elif given.total_steps >= given.num_steps:
        assert plan.traced.stop <= given.total_steps


@given(options)
def test_light_steps_come_just_before_the_warm_up_and_leave_steps_before_them(
    given: ProbeOptions,
) -> None:
    plan = make_plan(given)

    assert len(plan.light) in (0, given.light_steps)
    if plan.light:
        assert plan.light.stop == plan.warmup.start
        assert plan.light_warmup.stop == plan.light.start
        assert plan.window.start - plan.settled >= 4


def test_few_ranks_are_traced_for_more_steps_where_the_number_is_left_open() -> None:
    lengths = {
        ranks: len(make_plan(ProbeOptions(num_steps=0), num_ranks=ranks).traced)
        for ranks in (None, 1, 2, 3, 4, 5, 8, 4096)
    }
    assert lengths == {None: 4, 1: 4, 2: 13, 3: 7, 4: 5, 5: 4, 8: 4, 4096: 4}
    assert len(make_plan(ProbeOptions(num_steps=6), num_ranks=2).traced) == 6
    assert all(
        (ranks - 1) * (steps - 1) >= LEAST_FREEDOM
        for ranks, steps in lengths.items()
        if (ranks or 1) > 1
    )
