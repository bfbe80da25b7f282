"""Real libraries under ``distprof capture``: started by ``python3 tasks.py programs`` only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.declared import (
    FAULTS,
    PROGRAMS,
    STEPS,
    Fault,
    Program,
    accused,
    is_explained,
    is_named,
    losses,
)
from tests.programs.started import Ended, started, why_not

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module", params=PROGRAMS.values(), ids=lambda one: one.name)
def program(request: pytest.FixtureRequest) -> Program:
    reason = why_not(request.param)
    if reason:
        pytest.skip(reason)
    found: Program = request.param
    return found


@pytest.fixture(scope="module")
def alone(program: Program) -> Ended:
    return started(program)


@pytest.fixture(scope="module")
def captured(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return started(program, tmp_path_factory.mktemp("programs") / "run")


def test_it_ends_as_it_does_alone(alone: Ended, captured: Ended) -> None:
    assert alone.code == 0, alone.err[-2_000:]
    assert captured.code == 0, captured.err[-2_000:]


def test_losses_are_the_same_to_the_last_bit(
    program: Program, alone: Ended, captured: Ended
) -> None:
    if not program.is_stable:
        pytest.skip("two runs of it differ without distprof, too")
    assert losses(alone.out)
    assert losses(captured.out) == losses(alone.out)


def test_steps_are_those_of_its_own_log(program: Program, captured: Ended) -> None:
    logged = losses(captured.out)
    assert {step for _, step in logged} == set(range(STEPS))
    for rank in range(program.ranks):
        assert len(captured.steps(rank)) == STEPS


def test_a_healthy_run_blames_no_rank(captured: Ended) -> None:
    assert [(one["code"], one["message"]) for one in accused(captured.report)] == []


def test_its_groups_are_named(program: Program, captured: Ended) -> None:
    """Of each size, the axes that the report says its groups span."""
    for size, axes in program.axes.items():
        said = {one["axis"] for one in captured.report["run"]["groups"] if one["size"] == size}
        assert said & set(axes), captured.report["run"]["groups"]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_its_rank_and_cause(kind: str, tmp_path: Path) -> None:
    """On one program; ``benchmarks/programs.py`` counts all of them."""
    struck, fault = PROGRAMS["FSDP2"], FAULTS[kind]
    if why_not(struck):
        pytest.skip(why_not(struck))
    ended = started(struck, tmp_path / "run", fault=fault)
    assert ended.code == 0, ended.err[-2_000:]
    said = [(one["code"], one["message"]) for one in ended.report["findings"]]
    assert is_named(ended.report, fault), said
    assert is_explained(ended.report, fault), said


def test_the_exit_code_is_the_programs_own(tmp_path: Path) -> None:
    program = PROGRAMS["GPipe by hand"]
    if why_not(program):
        pytest.skip(why_not(program))
    broken = Fault(kind="failing", amount=3, words=(), rank=0)
    assert (
        started(program, tmp_path / "run", fault=broken).code
        == started(program, fault=broken).code
        != 0
    )
