"""The gate's verdict on a whole run."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.artefacts.summary_file import (
    Acknowledged,
    BaselineSession,
    Fingerprint,
    StepParts,
    SummaryFile,
)
from distprof.config import CheckConfig
from distprof.verbs.gate import ALPHA, EARLY_ALPHA
from distprof.verbs.gate.baseline import accepted, make_baseline, session_of
from distprof.verbs.gate.check import judge

MACHINE = Fingerprint(world_size=4, device="H200", backend="nccl")
CALM = (100.0, 100.4, 99.7, 100.1, 99.9, 100.2, 99.8, 100.3)
PARTS = ("computation_ns", "exposed_transfer_ns", "exposed_wait_ns", "bubble_ns",
         "unsplit_comm_ns", "host_ns", "input_ns", "copy_ns", "other_ns")  # fmt: skip


def runs(steps, *, at=0, ranks=4, **fields):
    return [
        SummaryFile(
            distprof_version="1",
            created_ns=at + number,
            fingerprint=msgspec.structs.replace(MACHINE, world_size=ranks),
            step_ns=(int(step * 1e6),),
            **fields,
        )
        for number, step in enumerate(steps)
    ]


def slower(factor, values=CALM):
    return [factor * value for value in values]


def three_sessions(**fields):
    baseline = make_baseline(runs(CALM, **fields))
    for number in (1, 2):
        session = runs(slower(1 + 0.001 * number), at=100 * number, **fields)
        baseline = accepted(baseline, session)
    return baseline


def judged(repeats, *, small=(), baseline=None, now_ns=0, is_paired=False, alpha=ALPHA, **choices):
    return judge(
        baseline or three_sessions(),
        session_of(repeats, small),
        source="baseline.json",
        fingerprint=MACHINE,
        now_ns=now_ns,
        settings=CheckConfig(**choices),
        is_paired=is_paired,
        alpha=alpha,
    )


@pytest.mark.parametrize(
    ("factor", "state", "is_failed"),
    [(1.0, "passed", False), (1.1, "regressed", True), (0.9, "improved", False)],
)
def test_states(factor, state, is_failed):
    result = judged(runs(slower(factor)))
    assert (result.state, result.is_failed) == (state, is_failed)
    (check,) = result.metrics
    assert check.metric == "step_time"
    assert check.candidate == pytest.approx(1e6 * 100.05 * factor)
    assert check.low <= check.change <= check.high
    assert result.needed_repeats is None


def test_too_few_repeats_fail_only_where_that_is_asked():
    few = runs(slower(1.1, CALM[:1]))
    assert judged(few).state == "inconclusive"
    assert not judged(few).is_failed
    assert judged(few, inconclusive_fails=True).is_failed
    assert judged(few).needed_repeats >= 1


def test_parts_of_a_step_are_shown_and_decide_only_if_asked():
    calm = make_baseline(runs(CALM, overlap_ratio=0.8))
    worse = runs(CALM, overlap_ratio=0.1)
    alone = judged(worse, baseline=calm, is_paired=True)
    assert alone.state == "passed"
    assert [(c.metric, c.state, c.is_gated) for c in alone.metrics] == [
        ("step_time", "passed", True),
        ("overlap", "regressed", False),
    ]
    asked = judged(worse, baseline=calm, is_paired=True, metrics=("overlap",))
    assert asked.state == "regressed"
    assert [c.metric for c in asked.metrics if c.is_gated] == ["overlap"]


def test_what_is_known_of_times_is_not_held_against_shares():
    calm = make_baseline(runs(CALM, overlap_ratio=0.8))
    shaky = judged(runs(CALM, overlap_ratio=0.8), baseline=calm, session_noise=0.1)
    step, overlap = shaky.metrics
    assert step.high - step.low > 0.2
    assert overlap.high - overlap.low < 0.01


def test_what_was_asked_for_and_is_not_known_is_said():
    result = judged(runs(CALM), metrics=("step_time", "bubble"))
    assert result.state == "passed"
    assert result.not_checked == {"bubble": "the baseline does not have it"}
    assert judged(runs(CALM), metrics=("bubble",)).state == "inconclusive"


def test_an_efficiency_that_the_runs_no_longer_have_is_said():
    small = runs(CALM, ranks=1)
    baseline = make_baseline(runs(slower(1.1)), small)
    assert baseline.small_world_size == 1
    lacking = judged(runs(slower(1.1)), baseline=baseline)
    assert lacking.not_checked == {"efficiency": "the runs do not have it"}
    both = judged(runs(slower(1.4)), small=small, baseline=baseline, session_noise=0.0)
    assert {c.metric: c.state for c in both.metrics} == {
        "step_time": "regressed",
        "efficiency": "regressed",
    }


def test_a_tolerance_of_ones_own():
    assert judged(runs(slower(1.1)), tolerance={"step_time": 0.2}).state == "passed"


def test_pairs_need_no_further_sessions():
    drifting = [100 + 3 * number for number in range(8)]
    baseline = make_baseline(runs(drifting))
    for factor, state in ((1.05, "regressed"), (1.0, "passed")):
        found = judged(runs(slower(factor, drifting)), baseline=baseline, is_paired=True)
        assert found.state == state
    apart = judged(runs(slower(1.05, drifting)), baseline=baseline)
    assert apart.state == "inconclusive"


def test_an_early_look_takes_more_to_condemn():
    shaky = slower(1.1, CALM[:4])
    assert judged(runs(shaky)).state == "regressed"
    early = judged(runs(shaky), alpha=EARLY_ALPHA, baseline=make_baseline(
        runs(CALM[:5])), session_noise=0.0)  # fmt: skip
    assert early.state == "inconclusive"
    assert early.needed_repeats >= 1


def with_accepted_loss(loss, until_ns=None):
    entry = Acknowledged(metric="step_time", up_to=loss, reason="new encoder", until_ns=until_ns)
    return msgspec.structs.replace(three_sessions(), acknowledged=(entry,))


@pytest.mark.parametrize(
    ("factor", "state"),
    [(1.08, "acknowledged"), (1.101, "acknowledged"), (1.2, "regressed"), (1.0, "passed")],
)
def test_an_accepted_loss_is_shown_and_fails_nothing_up_to_its_size(factor, state):
    result = judged(runs(slower(factor)), baseline=with_accepted_loss(0.1))
    assert result.state == state
    reason = "new encoder" if state == "acknowledged" else ""
    assert result.metrics[0].reason == reason


def test_an_accepted_loss_runs_out():
    baseline = with_accepted_loss(0.1, until_ns=50)
    assert judged(runs(slower(1.08)), baseline=baseline, now_ns=49).state == "acknowledged"
    assert judged(runs(slower(1.08)), baseline=baseline, now_ns=50).state == "regressed"


def test_an_accepted_loss_below_the_tolerance_changes_nothing():
    assert judged(runs(slower(1.1)), baseline=with_accepted_loss(0.01)).state == "regressed"


def parts_of(values):
    return StepParts(span_ns=sum(values), **dict(zip(PARTS, values, strict=True)))


lengths = st.lists(st.integers(0, 10**12), min_size=len(PARTS), max_size=len(PARTS))


@given(lengths, lengths)
def test_what_explains_a_change_adds_up_to_it(before, after):
    first, second = parts_of(before), parts_of(after)
    baseline = make_baseline(runs(CALM, parts=first))
    found = judged(runs(CALM, parts=second), baseline=baseline)
    assert sum(part.baseline_ns for part in found.parts) == first.span_ns
    assert sum(part.change_ns for part in found.parts) == second.span_ns - first.span_ns


values = st.lists(st.floats(1e-3, 1e15), min_size=1, max_size=12).map(tuple)


@settings(max_examples=60, deadline=None)
@given(before=values, after=values, noise=st.none() | st.floats(0, 0.5), loss=st.floats(0, 0.9))
def test_a_verdict_hangs_together_whatever_was_measured(before, after, noise, loss):
    session = BaselineSession(created_ns=1, values={"step_time": after})
    baseline = msgspec.structs.replace(
        with_accepted_loss(loss),
        sessions=(BaselineSession(created_ns=0, values={"step_time": before}),),
    )
    result = judge(
        baseline,
        session,
        source="b",
        fingerprint=MACHINE,
        now_ns=0,
        settings=CheckConfig(session_noise=noise),
    )
    (check,) = result.metrics
    assert result.state == check.state
    assert result.is_failed == (check.state == "regressed")
    assert (check.needed_repeats or 1) >= 1
    assert check.state == "inconclusive" or check.needed_repeats is None
    assert (check.reason == "") == (check.state != "acknowledged")
    if check.state == "regressed":
        assert check.change > 1
