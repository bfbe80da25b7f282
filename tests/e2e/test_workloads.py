"""Compares the report of every reference run with its options and with theory."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from distprof_runs.cli import run
from distprof_runs.configuration import Configuration
from distprof_runs.model_parallel_options import CpOptions, PpOptions, ThreeDOptions
from distprof_runs.options import WorkloadOptions

import distprof
from distprof.join.instances import step_labels
from distprof.run.run import Run
from distprof.terms import CollectiveKind
from tests.drawn import some
from tests.e2e.jobs import Job, RunOnce
from tests.e2e.workload_cases import (
    ALL,
    NIGHTLY,
    TRACED_STEPS,
    Case,
    Moved,
    configuration_of,
    expected_losses,
    moved_by_theory,
    recorded_losses,
)
from tests.reference_runs.volumes import members_along

pytestmark = pytest.mark.distributed

EXACT = 1e-5  # relative, float32 in another order


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    params=some(ALL.values(), always=lambda case: case.name not in NIGHTLY),
    ids=list(ALL),
    scope="module",
)
def case(request: pytest.FixtureRequest) -> Case:
    asked: Case = request.param
    return asked


@pytest.fixture(scope="module")
def job(case: Case, run_once: RunOnce) -> Job:
    return run_once(*case.arguments)


def test_it_ends_well_and_is_called_by_its_name(case: Case, job: Job) -> None:
    assert job.exit_code == 0, job.stderr
    assert job.report["run"]["strategy"] == case.strategy
    assert job.report["job"]["outcome"] == "completed"
    assert job.report["run"]["ranks"] == list(range(case.ranks))


def test_a_dry_run_of_the_same_gives_a_file_that_gives_itself(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(dry_run(*case.arguments))
    assert dry_run(case.workload, "--config", str(file)) == file.read_text()


def test_run_json_holds_what_the_dry_run_said(case: Case, job: Job) -> None:
    assert job.run is not None
    told = tomllib.loads(dry_run(*case.arguments, "--device", "cpu"))
    for section in ("model", "training", case.workload):
        assert job.run.config[section] == told[section]


def dry_run(*arguments: str) -> str:
    return CliRunner().invoke(run, [*arguments, "--dry-run"], catch_exceptions=False).output


def test_every_traced_step_is_analysed_or_said_to_be_disturbed(job: Job) -> None:
    capture = job.report["capture"]
    left_out = capture["dropped_steps"]
    assert len(capture["steps"]) + len(left_out) == TRACED_STEPS
    assert set(map(str, capture["transient_steps"])) == set(left_out)
    assert len(left_out) <= 1
    assert job.report["run"]["num_steps"] == len(capture["steps"])


def test_every_collective_has_its_partners(job: Job) -> None:
    capture = job.report["capture"]
    assert capture["matched_ratio"] == 1.0
    assert capture["num_matched"] > 0
    assert capture["gaps"] == []


def test_groups_are_those_of_the_mesh(case: Case, job: Job) -> None:
    configuration = configuration_of(job)
    mesh = configuration.workload.mesh(case.ranks)
    assert job.report["run"]["mesh"] == mesh
    found = {
        group["axis"]: (group["size"], group["num_groups"]) for group in job.report["run"]["groups"]
    }
    expected = {axis: (size, case.ranks // size) for axis, size in mesh.items()}
    if len(mesh) > 1:
        expected["world"] = (case.ranks, 1)
    assert found == expected


def test_members_of_groups_are_those_along_the_axis(case: Case, job: Job) -> None:
    mesh = configuration_of(job).workload.mesh(case.ranks)
    found = {(group.axis, group.ranks) for group in opened(job.dir).topology.groups}
    for axis in mesh:
        expected = {tuple(members_along(axis, rank, mesh)) for rank in range(case.ranks)}
        assert {ranks for name, ranks in found if name == axis} == expected


def test_collectives_are_those_of_theory(case: Case, job: Job) -> None:
    expected = moved_by_theory(job, job.report["capture"]["steps"], axis_of_all(job))
    found = moved_by_report(job)
    open_counts = {key for key, moved in expected.items() if moved.count is None}
    assert found.keys() == expected.keys()
    for key, moved in expected.items():
        assert found[key].total_bytes == moved.total_bytes, key
        if key not in open_counts:
            assert found[key].count == moved.count, key


def test_messages_go_where_the_pipeline_or_the_ring_sends_them(case: Case, job: Job) -> None:
    expected = messages_by_theory(case, job)
    recorded = opened(job.dir)
    found = Counter(
        (rank.rank, peer)
        for rank in recorded.ranks
        for kind, peer, step in zip(
            rank.collectives["kind"].tolist(),
            rank.collectives["peer"].tolist(),
            step_labels(rank).tolist(),
            strict=True,
        )
        if kind == CollectiveKind.SEND and step in recorded.window.steps
    )
    assert found == expected


def messages_by_theory(case: Case, job: Job) -> dict[tuple[int, int], int]:
    """Messages from rank to rank in the analysed steps."""
    configuration = configuration_of(job)
    options, micro_batches = configuration.workload, configuration.training.micro_batches
    steps = len(job.report["capture"]["steps"])
    found: Counter[tuple[int, int]] = Counter()
    if isinstance(options, CpOptions) and options.method == "ring":
        hops = 3 * (case.ranks - 1) * configuration.model.layers * micro_batches
        found.update({(a, (a + 1) % case.ranks): hops * steps for a in range(case.ranks)})
    for a, b in crossings(options, configuration, case.ranks):
        found[a, b] += micro_batches * steps  # activations
        found[b, a] += micro_batches * steps  # gradients
    return dict(found)


def crossings(
    options: WorkloadOptions, configuration: Configuration, ranks: int
) -> Iterator[tuple[int, int]]:
    """Ranks of neighbouring stages."""
    mesh = options.mesh(ranks)
    if isinstance(options, PpOptions):
        plan = options.plan(configuration.model, configuration.training, ranks)
    elif isinstance(options, ThreeDOptions) and options.pp > 1:
        plan = options.plan(configuration.model, configuration.training)
    else:
        return
    for group in {tuple(members_along("pp", rank, mesh)) for rank in range(ranks)}:
        for a, b in plan.crossings():
            yield group[a], group[b]


def axis_of_all(job: Job) -> str:
    """What the report calls the group of all ranks: the axis, where a mesh has one only."""
    mesh = list(job.report["run"]["mesh"])
    return mesh[0] if len(mesh) == 1 else "world"


def moved_by_report(job: Job) -> dict[tuple[str, str], Moved]:
    """Classes of one kind and axis together."""
    found: dict[tuple[str, str], Moved] = {}
    for row in job.report["collectives"]["classes"]:
        key = row["kind"], row["axis"]
        before = found.get(key, Moved(count=0, total_bytes=0))
        found[key] = Moved(
            count=(before.count or 0) + row["count"],
            total_bytes=before.total_bytes + row["bytes"] * row["count"],
        )
    return found


def test_advice_is_about_a_pipeline_only_where_there_is_one(case: Case, job: Job) -> None:
    verdict = job.stdout.partition("\n\n")[0]
    assert ("stages" in verdict) <= ("PP" in case.strategy)
    why = {entry["code"]: entry["why"] for entry in job.report["not_checked"]}
    if case.workload == "pp":
        assert why["COM103"] == "the recording has only sends and receives, no collectives"


def test_no_class_is_listed_twice(job: Job) -> None:
    keys = [
        (row["kind"], row["axis"], row["group_size"], row["bytes"])
        for row in job.report["collectives"]["classes"]
    ]
    assert len(keys) == len(set(keys))


def test_losses_are_those_of_one_process(case: Case, job: Job) -> None:
    if not case.computes:
        pytest.skip("blocks that sleep compute nothing")
    tolerance = 1e-2 if "bf16" in case.name else EXACT
    assert recorded_losses(job) == pytest.approx(expected_losses(job), rel=tolerance)


@cache
def opened(folder: Path) -> Run:
    return distprof.open_run(folder)
