"""Captures of programs that are set up badly, each of which says so, and of one that is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.probes.cli.runs import SCRIPTS, TORCHRUN, Captured, captured, environment
from tests.warm import Starter

pytestmark = pytest.mark.distributed

OURS = {"INP103", "INP104", "INP105", "INP106", "INP107", "HST108", "COM123"}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory, started_warm: Starter) -> Any:
    """Captures by the program's options, each made once."""
    made: dict[tuple[str, ...], Captured] = {}

    def run(*options: str, mode: str = "window") -> Captured:
        if options not in made:
            folder: Path = tmp_path_factory.mktemp("setup") / "run"
            program = [*TORCHRUN, str(SCRIPTS / "setups.py"), *options]
            made[options] = captured(folder, "--mode", mode, program=program, start=started_warm)
        return made[options]

    return run


def ours(run: Captured) -> dict[str, dict[str, Any]]:
    assert run.code == 0, run.err
    return {found["code"]: found for found in run.report["findings"] if found["code"] in OURS}


def test_a_traced_job_with_three_faults_names_each(capture: Any) -> None:
    run = capture("--rest", "0.002", "--no-set-epoch", "--unused")
    found = ours(run)
    assert set(found) == {"INP103", "INP105", "COM123"}
    assert "The data loader has no workers" in found["INP103"]["headline"]
    assert found["INP103"]["cost_ns_per_step"] > 10_000_000  # eight samples of 2 ms
    assert "the same order in 4 epochs" in found["INP105"]["headline"]
    assert found["COM123"]["cost_ns_per_step"] > 0
    others = {one["code"] for one in run.report["findings"]}
    assert not others & {"INP101", "COM115"}  # they count the same time and know less


def test_replicas_on_the_same_data_are_an_error_without_any_trace(capture: Any) -> None:
    run = capture("--rest", "0.002", "--plain", mode="always-on")
    found = ours(run)
    assert set(found) == {"INP103", "INP106"}
    assert (found["INP106"]["severity"], found["INP106"]["ranks"]) == ("error", [0, 1])
    assert "RandomSampler over all of it" in found["INP106"]["message"]
    (loader,) = run.report["settings"]["loaders"]
    assert (loader["num_workers"], loader["batch_size"]) == (0, 8)


def test_a_job_that_is_set_up_well_gets_none_of_these(capture: Any) -> None:
    run = capture("--workers", "1", mode="always-on")
    assert not ours(run)
    (loader,) = run.report["settings"]["loaders"]
    assert (loader["num_workers"], loader["num_epochs"], loader["num_orders"]) == (1, 4, 4)
    assert loader["num_first_batches"] == 2
    (host,) = run.report["settings"]["hosts"]
    assert (host["num_local_ranks"], host["num_threads"]) == (2, 1)


def test_losses_are_those_without_capture(capture: Any, started_warm: Starter) -> None:
    """Reading the job's objects, and the first batch of each loader, changes nothing."""
    watched = capture("--workers", "1", mode="always-on")
    assert watched.read(0, "settings.json")["loaders"][0]["first_batch"]
    program = [*TORCHRUN, str(SCRIPTS / "setups.py"), "--workers", "1"]
    alone = started_warm(program, environment())
    assert alone.returncode == 0, alone.stderr
    assert _losses(watched.out) == _losses(alone.stdout)
    assert len(_losses(alone.stdout)) == 8


def _losses(out: str) -> list[str]:
    """Of each rank and epoch, to the last digit; ranks may write into each other's lines."""
    return sorted(re.findall(r"rank \d epoch \d loss \d\.\d+", out))
