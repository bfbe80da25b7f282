"""From the command line and a TOML file to one set of options, and back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from distprof_probes.environment import Placement
from distprof_runs.cli import run
from distprof_runs.launching.as_rank import _first_of, torch_variables
from distprof_runs.launching.preparation import described, is_rank_already
from distprof_runs.registry import WORKLOADS
from distprof_runs.settings import LaunchOptions, Settings, read_settings_file, resolve, to_toml
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import InputError, UsageError


def dry(*arguments: str) -> Result:
    return CliRunner().invoke(run, [*arguments, "--dry-run"], catch_exceptions=False)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_dry_run_prints_a_file_that_asks_for_the_same(workload: str, tmp_path: Path) -> None:
    file = tmp_path / "same.toml"
    file.write_text(dry(workload, "--steps", "7", "--fault", "sleep-rank=1:3").output)
    again = dry(workload, "--config", str(file))
    assert again.exit_code == 0
    assert again.output == file.read_text()
    assert "steps = 7" in again.output
    assert 'inject = ["sleep-rank=1:3"]' in again.output


def test_what_is_typed_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nsteps = 9\nbatch = 2\n[ddp]\nbucket_mb = 5.0\n")
    said = dry("ddp", "--config", str(file), "--steps", "4", "--no-static-graph").output
    assert "steps = 4" in said
    assert "batch = 2" in said
    assert "bucket_mb = 5.0" in said


def test_flags_that_are_named_for_a_negative_turn_both_ways() -> None:
    assert "no_sync = false" in dry("ddp", "--sync").output
    assert "no_sync = true" in dry("ddp", "--no-sync").output


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"trainig": {}}, r"section \[trainig\] is unknown: did you mean training\?"),
        ({"training": {"step": 3}}, r"\[training\] step is unknown: did you mean steps\?"),
        (
            {"training": {"steps": "x"}},
            r"\[training\] steps must be a whole number of at most 1,000,000,000, not 'x'",
        ),
        ({"probes": {"mode": "loud"}}, r"\[probes\] mode must be one of window, .* not 'loud'"),
        ({"ddp": {"hook": "fp8"}}, r"\[ddp\] hook"),
        ({"model": {"preset": "huge"}}, "unknown preset 'huge'"),
        ({"faults": {"inject": ["slow"]}}, "unknown fault 'slow'"),
        ({"launch": {"nodes": 2}}, "give their meeting point"),
        ({"launch": {"nodes": 2, "rdzv_endpoint": "a:1"}}, "number this one"),
        ({"launch": {"rdzv_endpoint": "nohost"}}, "write HOST:PORT"),
        ({"launch": {"gpus": 4, "ranks": 2}}, "remove --ranks"),
        ({"launch": {"ranks": -1}}, "count from 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(
    sections: dict[str, dict[str, Any]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    with pytest.raises(UsageError, match=says):
        resolve("ddp", sections, {})


@pytest.mark.parametrize("content", ["steps = 3\n", "[training\n", "\udcff"])
def test_a_file_that_is_no_settings_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"run\.toml"):
        read_settings_file(file)


@given(st.sampled_from(sorted(WORKLOADS)), st.integers(1, 999), st.booleans())
def test_any_settings_come_back_from_their_file(workload: str, steps: int, stacks: bool) -> None:
    import tomllib

    given_ = {"training": {"steps": steps}, "probes": {"stacks": stacks}}
    settings = resolve(workload, {}, given_)
    again = resolve(workload, tomllib.loads(to_toml(settings)), {})
    assert to_toml(again) == to_toml(settings)
    assert (again.probes, again.launch) == (settings.probes, settings.launch)
    assert settings.probes.total_steps == steps


def test_run_json_says_which_ranks_trace() -> None:
    settings = resolve("ddp", {}, {"probes": {"profile_ranks": "0,2-3"}})
    coverage = described(settings, 8).coverage
    assert (coverage.profiled_ranks, coverage.text) == ((0, 2, 3), "0,2-3")
    always_on = resolve("ddp", {}, {"probes": {"mode": "always-on"}})
    assert described(always_on, 2).coverage.profiled_ranks == ()


def place(origin: str, **known: Any) -> Placement:
    values: dict[str, Any] = {
        "rank": 1,
        "world_size": 4,
        "local_rank": 1,
        "local_world_size": 2,
        "node": 0,
        "host": "h",
    }
    return Placement(**{**values, **known}, origin=origin)


@pytest.mark.parametrize(
    ("launch", "where", "expected"),
    [
        ({}, place("alone", rank=0, world_size=1), False),
        ({}, place("torchrun"), True),
        ({}, place("slurm"), True),
        ({"gpus": 8}, place("slurm", rank=0, world_size=1), False),  # a shell inside srun --pty
        (
            {"gpus": 8, "nodes": 4, "node_rank": 1, "rdzv_endpoint": "n0:29500"},
            place("slurm"),
            False,
        ),
    ],
)
def test_a_process_knows_whether_it_is_a_rank_already(
    launch: dict[str, Any], where: Placement, expected: bool
) -> None:
    settings: Settings = resolve("ddp", {"launch": launch}, {})
    assert is_rank_already(settings, where) is expected


def test_ranks_below_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="already rank 1 of 4"):
        is_rank_already(resolve("ddp", {"launch": {"ranks": 2}}, {}), place("torchrun"))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("a1,b[2-3]", "a1"),
        ("rack[3,5]-node", "rack3-node"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert _first_of(nodes) == first


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)

    def put(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


def test_srun_tells_enough_for_ranks_to_meet(environment: Callable[..., None]) -> None:
    environment(SLURM_JOB_ID="123456", SLURM_STEP_NODELIST="gpu[3-4]")
    assert torch_variables(place("slurm")) == {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "gpu3",
        "MASTER_PORT": "27840",
    }


def test_steps_of_a_job_that_run_beside_each_other_meet_at_ports_of_their_own(
    environment: Callable[..., None],
) -> None:
    ports = set()
    for step in range(8):
        environment(SLURM_JOB_ID="123456", SLURM_STEP_ID=str(step), SLURM_STEP_NODELIST="gpu3")
        ports.add(int(torch_variables(place("slurm"))["MASTER_PORT"]))
    assert len(ports) == 8
    assert min(ports) > 1023
    assert max(ports) < 32768  # from there on Linux hands them out


def test_srun_must_start_one_launcher_on_each_node(environment: Callable[..., None]) -> None:
    options = LaunchOptions(nodes=2, rdzv_endpoint="node0:29500")
    environment(SLURM_NODEID="1", SLURM_STEP_NUM_TASKS="2")
    options.check()
    environment(SLURM_STEP_NUM_TASKS="4")
    with pytest.raises(UsageError, match="srun --nodes 2 --ntasks 2"):
        options.check()


def test_mpi_over_several_hosts_must_be_told_where_to_meet(
    environment: Callable[..., None],
) -> None:
    environment()
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        torch_variables(place("mpi", node=None))
    assert torch_variables(place("mpi", local_world_size=4))["MASTER_ADDR"] == "localhost"


def test_help_needs_no_torch() -> None:
    program = "import sys, distprof_runs.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_help_shows_the_options_of_the_probes_with_their_explanation() -> None:
    said = CliRunner().invoke(run, ["ddp", "--help"]).output
    assert "Probes:" in said
    assert "--profile-steps INTEGER" in said
    assert "Number of steps to trace" in said


def test_a_misspelt_workload_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(run, ["fdsp"])
    assert result.exit_code == 2
    assert "did you mean fsdp?" in result.output
