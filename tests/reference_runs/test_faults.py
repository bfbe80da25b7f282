"""``--fault``: what is understood, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from distprof_runs.faults.orders import FAULTS, check_faults, link_of, parse_fault
from distprof_runs.options import DdpOptions, WorkloadOptions
from distprof_runs.registry import WORKLOADS
from distprof_runs.settings import resolve
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.run_file import Fault
from distprof.errors import UsageError

DDP = DdpOptions()
PP, MOE = WORKLOADS["pp"].options(), WORKLOADS["moe"].options()


def test_kind_target_and_amount_are_read() -> None:
    assert parse_fault("slow-rank=3:1.2") == Fault(
        kind="slow-rank", target=3, amount=1.2, text="slow-rank=3:1.2"
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_example_of_each_kind_is_understood(name: str) -> None:
    assert parse_fault(FAULTS[name].example).kind == name


def test_an_unknown_kind_is_answered_with_all_of_them() -> None:
    with pytest.raises(UsageError) as caught:
        parse_fault("slow-disk=1:2")
    for name, kind in FAULTS.items():
        assert name in str(caught.value)
        assert kind.summary in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "slow-rank",
        "slow-rank=",
        "slow-rank=1",
        "slow-rank=x:2",
        "slow-rank=-1:2",
        "slow-rank=1:nan",
    ],
)
def test_what_cannot_be_read_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"slow-rank=RANK:FACTOR.*slow-rank=3:1.2"):
        parse_fault(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slow-rank=1:0.5", "must be at least 1"),
        ("late-input=1:-3", "must not be negative"),
        ("dead-rank=1:2.5", "whole number"),
        ("hang-rank=1:-1", "whole number"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_fault(text)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("slow-link=1000:0.2", (1000.0, 0.2)),
        ("slow-link=200", (200.0, 0.0)),
    ],
)
def test_a_slow_link_has_a_rate_and_perhaps_a_delay(text: str, link: tuple[float, float]) -> None:
    fault = parse_fault(text)
    assert fault.target is None
    assert link_of(fault) == link


@pytest.mark.parametrize("text", ["slow-link=0:1", "slow-link=-5", "slow-link=fast", "slow-link="])
def test_a_link_without_a_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MBIT_PER_S:DELAY_MS"):
        parse_fault(text)


def test_a_slow_link_needs_nodes_to_lie_between() -> None:
    with pytest.raises(UsageError, match="--emulate-nodes 2"):
        resolve("ddp", {}, {"faults": {"inject": ["slow-link=100:1"]}})


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_fault(text).text == text


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("slow-rank=4:2", DDP, "rank 4 does not exist, they are numbered 0 to 3"),
        ("routing-skew=0:2", DDP, "no experts"),
        ("routing-skew=8:2", MOE, "expert 8 does not exist"),
        ("stage-skew=0:2", DDP, "no stages"),
        ("stage-skew=4:2", PP, "stage 4 does not exist"),
        ("dead-rank=1:10", DDP, "ends after step 9"),
    ],
)
def test_faults_that_strike_nothing_are_refused(
    text: str, options: WorkloadOptions, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        check_faults((parse_fault(text),), options, 4, 10)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("slow-rank=3:2", DDP),
        ("routing-skew=7:2", MOE),
        ("stage-skew=3:2", PP),
        ("hang-rank=0:9", PP),
    ],
)
def test_faults_that_strike_are_accepted(text: str, options: WorkloadOptions) -> None:
    check_faults((parse_fault(text),), options, 4, 10)
