"""Efficiency, intervals, losses and laws of sweeps written out by hand."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling_accuracy import SPEEDUP
from distprof.artefacts.summary_file import Fingerprint, StepParts, SummaryFile
from distprof.rules.engine import run_rules
from distprof.verbs.sweep import CAUSES, ScalingResult
from distprof.verbs.sweep.measure import analyze_scaling, scaled
from tests.verbs.sweep.sweeps import MS, parts, runs


def efficiency(result):
    return {size.num_ranks: size.efficiency for size in result.sizes}


def losses(size):
    return {loss.cause: loss.lost_ns for loss in size.losses if loss.lost_ns}


def test_strong_scaling_of_the_formula_sheet():
    result = analyze_scaling([*runs(1, 100_000, tokens=64), *runs(4, 28_000, tokens=64)])
    four = result.sizes[1]
    assert (result.mode, result.unit, result.baseline_ranks) == ("strong", "tokens", 1)
    assert four.speedup == pytest.approx(3.57, abs=0.005)
    assert four.efficiency == pytest.approx(0.893, abs=0.0005)
    assert four.ideal_step_ns == pytest.approx(25_000 * MS)


def test_weak_scaling_of_the_formula_sheet():
    steps = {1: 100, 2: 100 / 0.95, 4: 100 / 0.925, 8: 100 / 0.9}
    result = analyze_scaling([run for n, ms in steps.items() for run in runs(n, ms)])
    assert result.mode == "weak"
    assert "each rank processes the same number of tokens" in result.how
    assert efficiency(result) == pytest.approx({1: 1, 2: 0.95, 4: 0.925, 8: 0.9}, rel=1e-6)
    assert [size.ideal_step_ns for size in result.sizes] == pytest.approx([100 * MS] * 4, abs=9)
    assert result.sizes[3].speedup == pytest.approx(7.2)
    assert result.sizes[0].throughput_per_s == pytest.approx(10_000)


def test_the_baseline_may_be_any_size():
    sweep = [*runs(2, 100), *runs(4, 110), *runs(8, 125)]
    result = analyze_scaling(sweep, baseline_ranks=4)
    assert efficiency(result) == pytest.approx({2: 1.1, 4: 1, 8: 0.88})
    assert result.sizes[1].efficiency_low is None
    assert analyze_scaling(sweep).baseline_ranks == 2
    assert analyze_scaling(sweep, baseline_ranks=3).unavailable == (
        "No run has 3 ranks, the requested baseline. The sizes are 2, 4, 8.",
    )


def test_losses_by_hand_add_up_and_shrinking_parts_are_negative():
    alone = parts(computation=90, host=6, other=4)
    eight = parts(computation=95, host=2, exposed_transfer=20, exposed_wait=6, other=2)
    size = analyze_scaling([*runs(1, 100, alone), *runs(8, 125, eight)]).sizes[1]
    by_hand = {
        "exposed transfer": 20 * MS,
        "imbalance and stragglers": 6 * MS,
        "host": -4 * MS,
        "computation grew": 5 * MS,
        "other": -2 * MS,
    }
    assert losses(size) == pytest.approx(by_hand, abs=9)
    assert size.lost_ns == pytest.approx(25 * MS, abs=9)
    assert sum(loss.ratio for loss in size.losses) == pytest.approx(1 - size.efficiency)
    assert size.traced_ratio == 1


def test_parts_are_scaled_from_the_traced_step_to_the_step():
    alone = parts(computation=200)
    four = parts(computation=200, exposed_transfer=50)
    size = analyze_scaling([*runs(1, 100, alone), *runs(4, 125, four)]).sizes[1]
    assert losses(size) == pytest.approx({"exposed transfer": 25 * MS}, abs=9)
    assert size.traced_ratio == 2


part = st.integers(0, 10**9)


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(part, min_size=9, max_size=9),
    after=st.lists(part, min_size=9, max_size=9),
    steps=st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e4)),
    is_weak=st.booleans(),
    ranks=st.integers(2, 1_000),
)
def test_losses_add_up_exactly_whatever_the_parts(before, after, steps, is_weak, ranks):
    if not sum(before) or not sum(after):
        return
    both = [
        StepParts(span_ns=sum(values), **dict(zip(CAUSES, values, strict=True)))
        for values in (before, after)
    ]
    tokens = None if is_weak else 7.0
    result = analyze_scaling(
        [*runs(1, steps[0], both[0], tokens=tokens), *runs(ranks, steps[1], both[1], tokens=tokens)]
    )
    size = result.sizes[1]
    assert sum(loss.lost_ns for loss in size.losses) == size.lost_ns
    assert size.lost_ns == size.step_ns - size.ideal_step_ns
    msgspec.json.encode(result)


@given(values=st.lists(part, min_size=9, max_size=9), step=st.integers(1, 10**15))
def test_what_rounding_leaves_goes_to_other_and_is_less_than_nine_ns(values, step):
    if not sum(values):
        return
    found = scaled(StepParts(span_ns=sum(values), **dict(zip(CAUSES, values, strict=True))), step)
    assert sum(getattr(found, field) for field in CAUSES) == step
    assert 0 <= found.other_ns - values[8] * step / sum(values) + 1e-6 * step < 10 + 2e-6 * step


def test_intervals_of_efficiency_hold_the_truth():
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(150):
        noise = [tuple(np.exp(random.normal(0, 0.03, 5)).tolist()) for _ in range(2)]
        sweep = [*runs(1, 100, repeats=noise[0]), *runs(8, 125, repeats=noise[1])]
        size = analyze_scaling(sweep).sizes[1]
        assert size.is_between_runs
        assert size.efficiency_low <= size.efficiency <= size.efficiency_high
        assert size.step_low_ns <= size.step_ns <= size.step_high_ns
        hits += size.efficiency_low <= 0.8 <= size.efficiency_high
    assert hits / 150 >= 0.91


def test_of_a_single_run_the_steps_tell_and_it_is_said():
    result = analyze_scaling([*runs(1, 100, repeats=(1.0,)), *runs(2, 110, repeats=(1.0,))])
    two = result.sizes[1]
    assert not two.is_between_runs
    assert two.efficiency_low < two.efficiency < two.efficiency_high
    assert any("only one run on 1 and 2 ranks" in why for why in result.unavailable)
    lone = [msgspec.structs.replace(run, step_ns=run.step_ns[:1]) for run in runs(4, 120)[:1]]
    assert analyze_scaling([*runs(1, 100)[:1], *lone]).sizes[1].efficiency_low is None


def test_laws_fit_the_sweep_and_extrapolate_with_an_interval():
    sizes = (1, 2, 4, 8, 16)
    sweep = [run for n in sizes for run in runs(n, 100 * n / float(SPEEDUP["usl"](n, 0.05, 0.001)))]
    result = analyze_scaling(sweep)
    laws = {law.law: law for law in result.laws}
    assert set(laws) == {"gustafson", "usl"}
    sigma, kappa = laws["usl"].parameters
    assert sigma.low <= 0.05 <= sigma.high
    assert kappa.low <= 0.001 <= kappa.high
    assert laws["usl"].peak_ranks == pytest.approx(30.8, rel=0.05)
    band = next(p for p in laws["usl"].predictions if p.num_ranks == 64)
    assert band.is_extrapolated
    assert band.low <= float(SPEEDUP["usl"](64, 0.05, 0.001)) / 64 <= band.high
    assert [p.num_ranks for p in laws["usl"].predictions] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_predictions_are_against_the_baseline_of_the_sweep():
    sizes = (2, 4, 8, 16)
    sweep = [
        run for n in sizes for run in runs(n, 100 / float(SPEEDUP["usl"](n, 0.1, 0)), tokens=64)
    ]
    result = analyze_scaling(sweep)
    assert [law.law for law in result.laws] == ["amdahl", "usl"]
    for law in result.laws:
        for size, predicted in zip(result.sizes, law.predictions, strict=False):
            assert predicted.efficiency == pytest.approx(size.efficiency, abs=0.01)
            assert predicted.low <= predicted.efficiency <= predicted.high


def test_too_few_sizes_for_a_law_is_a_sentence():
    result = analyze_scaling([*runs(1, 100), *runs(2, 110)])
    assert [law.law for law in result.laws] == ["gustafson"]
    assert any("Universal Scalability Law needs 3 different" in why for why in result.unavailable)


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        ([], "Found: no run with steps and a size"),
        (runs(4, 100), "Found: only 4 ranks"),
        ([*runs(1, 100, tokens=10), *runs(2, 100, tokens=15)], "neither constant nor proportional"),
        ([*runs(1, 100, tokens=0), *runs(2, 100, tokens=0)], "Choose --weak or --strong"),
        ([*runs(1, 100), *runs(1, 100, tokens=50), *runs(2, 100)], "differ in work"),
    ],
)
def test_what_is_no_sweep_is_a_sentence(sweep, why):
    result = analyze_scaling(sweep)
    assert why in result.unavailable[0]
    assert result.sizes == ()
    outcome = run_rules([result])
    assert outcome.findings == ()
    assert {skipped.code for skipped in outcome.not_checked} == {
        "SCA102", "SCA103", "SCA104", "SCA105",
    }  # fmt: skip


def test_told_what_it_is_work_need_not_be_known():
    sweep = [*runs(1, 100, tokens=0), *runs(4, 125, tokens=0)]
    weak, strong = (analyze_scaling(sweep, mode=mode) for mode in ("weak", "strong"))
    assert efficiency(weak)[4] == pytest.approx(0.8)
    assert efficiency(strong)[4] == pytest.approx(0.2)
    assert weak.sizes[0].work_per_step is None
    odd = analyze_scaling([*runs(1, 100), *runs(4, 125)], mode="strong")
    assert "However, tokens per step are 1000 on 1, 4000 on 4" in odd.how
    assert efficiency(odd)[4] == pytest.approx(0.8)  # work that is known is counted


def test_runs_that_cannot_be_used_are_named():
    bad = runs(8, 100)
    bad[0] = msgspec.structs.replace(bad[0], step_ns=())
    bad[1] = msgspec.structs.replace(bad[1], step_ns=(0, 5))
    bad[2] = msgspec.structs.replace(bad[2], fingerprint=Fingerprint())
    result = analyze_scaling([*runs(1, 100), *runs(2, 100), *bad])
    assert len(result.sizes) == 2
    assert result.unavailable[:3] == (
        "8 ranks, repeat 0 has no steady step.",
        "8 ranks, repeat 1 has a step that took 0 ns.",
        "8 ranks, repeat 2 does not record its number of ranks.",
    )


def test_parts_that_do_not_add_up_are_no_parts():
    broken = StepParts(**{**dict.fromkeys(StepParts.__struct_fields__, 0), "span_ns": 5})
    result = analyze_scaling([*runs(1, 100, parts(computation=1)), *runs(2, 100, broken)])
    assert result.sizes[1].losses == ()
    assert "No traced steps on 2 ranks: the causes of that loss are unknown." in result.unavailable


def test_transfers_of_other_axes_are_not_blamed_on_a_small_batch():
    two = parts(computation=40, exposed_transfer=50, other=10)
    axes = {"mesh": {"tp": 2}, "overlap_ratio": 0.1}
    sweep = [*runs(2, 100, two, **axes), *runs(8, 103, two, **axes)]
    assert run_rules([analyze_scaling(sweep)]).findings == ()


def test_a_superlinear_strong_sweep_is_found_with_its_computation():
    alone, four = parts(computation=98, other=2), parts(computation=80, other=2)
    sweep = [*runs(1, 100, alone, tokens=9), *runs(4, 20.5, four, tokens=9)]
    finding = run_rules([analyze_scaling(sweep)]).findings[0]
    assert finding.code == "SCA105"
    assert "122 %" in finding.headline
    assert "95 % interval 121 % to 123 %" in finding.message
    assert "computation of the same work is 18.4 % shorter" in finding.message


def test_the_result_survives_json():
    result = analyze_scaling([*runs(1, 100, parts(computation=1)), *runs(2, 110), *runs(4, 130)])
    text = msgspec.json.encode(result)
    assert msgspec.json.decode(text, type=ScalingResult) == result
    assert "Infinity" not in text.decode()
    assert json.loads(text)["mode"] == "weak"
    assert result.to_pandas("sizes").shape[0] == 3


absurd = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-1, 4), st.just(2**62)),
            st.lists(st.sampled_from([-1, 0, 1, 10**9, 2**62, 10**400]), max_size=3),
            absurd,
            absurd,
        ),
        max_size=6,
    ),
    mode=st.sampled_from([None, "weak", "strong"]),
)
def test_absurd_runs_give_a_sentence_or_numbers_never_more(rows, mode):
    sweep = [
        SummaryFile(
            distprof_version="1",
            created_ns=0,
            fingerprint=Fingerprint(world_size=ranks),
            step_ns=tuple(steps),
            tokens_per_step=tokens,
            overlap_ratio=overlap,
            parts=parts(computation=1, exposed_transfer=1),
        )
        for ranks, steps, tokens, overlap in rows
    ]
    result = analyze_scaling(sweep, mode=mode)
    assert result.sizes or result.unavailable
    for size in result.sizes:
        assert sum(loss.lost_ns for loss in size.losses) in (0, size.lost_ns)
    json.loads(msgspec.json.encode(result), parse_constant=pytest.fail)
    run_rules([result])
