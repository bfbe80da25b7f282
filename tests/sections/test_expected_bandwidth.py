"""Classes of a run against a fabric profile: reached, not reached, of other machines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from distprof import api
from distprof.artefacts.fabric_file import FabricCurve, FabricFile
from distprof.config import load_config
from distprof.costs.fabric import point
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.sections.collectives.measure import with_expectations
from distprof.terms import CollectiveKind
from tests.rules.samples import collective_class, collectives

GLOO = Path(__file__).parents[1] / "golden" / "kineto" / "gloo-ddp-2ranks"


def profile(ranks: int = 8, nodes: int = 1, device: str = "NVIDIA H200") -> FabricFile:
    """All-reduce at 100 GB/s bus bandwidth from 1 kB to 1 GB."""
    kind, factor = CollectiveKind.ALL_REDUCE, 2 * (ranks - 1) / ranks
    points = tuple(point(kind, ranks, n, [factor * n / 100]) for n in (10**3, 10**6, 10**9))
    tier = "node" if nodes == 1 else "across"
    curve = FabricCurve(
        kind=kind.label, group_size=ranks, num_nodes=nodes, tier=tier, points=points
    )
    return FabricFile(origin="distprof bench", device=device, curves=(curve,))


def test_a_class_that_the_profile_covers_gets_its_bandwidth() -> None:
    table = collectives(collective_class(num_nodes=1))
    (record,) = with_expectations(table, profile(), is_cpu=False).classes
    assert record.expected_busbw_bytes_per_s == pytest.approx(100e9, rel=1e-3)
    assert record.busbw_bytes_per_s == 30.6e9


@pytest.mark.parametrize(
    "fields",
    [
        {"num_nodes": 2},
        {"num_nodes": None},
        {"num_nodes": 1, "kind": "all_gather"},
        {"num_nodes": 1, "bytes": 100},
        {"num_nodes": 1, "group_size": 4},
    ],
    ids=str,
)
def test_a_class_that_it_does_not_cover_stays_unknown_and_is_named(fields) -> None:
    table = collectives(collective_class(**fields))
    result = with_expectations(table, profile(), is_cpu=False)
    assert result.classes == table.classes
    assert result.unavailable[0].startswith("the fabric profile does not cover all_")


@pytest.mark.parametrize(("device", "is_cpu"), [("cpu", False), ("NVIDIA H200", True)])
def test_a_profile_of_another_kind_of_machine_is_not_used(device: str, is_cpu: bool) -> None:
    table = collectives(collective_class(num_nodes=1))
    result = with_expectations(table, profile(device=device), is_cpu=is_cpu)
    assert result.classes == table.classes
    assert "not used" in result.unavailable[0]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    shutil.copytree(GLOO, folder)
    return folder


def test_a_run_is_held_against_the_profile_that_is_given_or_configured(
    traces: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fabric.json"
    file.write_bytes(msgspec.json.encode(profile(ranks=2, device="cpu")))
    (tmp_path / "distprof.toml").write_text('fabric = "fabric.json"\n')
    options = {"executor": "serial"}
    given = api.analyze(traces, fabric=file, **options)
    configured = api.analyze(traces, config=load_config(tmp_path / "distprof.toml"), **options)
    known = [c for c in given.collectives.classes if c.expected_busbw_bytes_per_s]
    assert known
    assert all(c.kind == "all_reduce" for c in known)
    assert configured.collectives == given.collectives
    assert re.search(r"busbw +expected\n", REPORT.reporter("text")(given, RenderOptions(full=True)))
    plain = api.analyze(traces, **options)
    assert "expected" not in REPORT.reporter("text")(plain, RenderOptions(full=True))
    assert not [c for c in plain.collectives.classes if c.expected_busbw_bytes_per_s]
