"""Dumps of the Flight Recorder: the window and the end in one file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.probes.flight_recorder import join_dumps, merge_dumps

from tests.probes.sessions import status_of
from tests.warm import Starter

PROGRAM = """
import os, sys
os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
import distprof_probes
options = distprof_probes.ProbeOptions(measure_overhead=False, flight_entries={entries})
with distprof_probes.session({run_dir!r}, options=options) as session:
    import torch, torch.distributed as dist
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    for step in range({steps}):
        for _ in range(5):
            dist.all_reduce(torch.ones(step + 1))
        session.step()
    dist.destroy_process_group()
"""


def dump(*record_ids: int, **more: Any) -> dict[str, Any]:
    return {"entries": [{"record_id": number} for number in record_ids], **more}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, [1, 2], [1, 2]),
        ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3]),
        ([0, 1], [7, 8], [0, 1, 7, 8]),
        ([0, 1], [0, 1], [0, 1]),
    ],
)
def test_what_the_ring_has_lost_is_kept_from_the_dump_before(
    before: list[int] | None, now: list[int], expected: list[int]
) -> None:
    merged = merge_dumps(dump(*before) if before else None, dump(*now, pg_status="new"))

    assert [entry["record_id"] for entry in merged["entries"]] == expected
    assert merged["pg_status"] == "new"


def test_groups_on_nccl_and_on_gloo_are_in_one_file_in_order_of_time() -> None:
    """NCCL's groups have a recorder of their own, which numbers its entries anew."""
    nccl = {
        "version": "2.10",
        "pg_config": {"0": {"desc": "default_pg"}},
        "pg_status": {"0": {"last_enqueued_collective": 2}},
        "entries": [
            {"record_id": 0, "time_created_ns": 10},
            {"record_id": 1, "time_created_ns": 30},
        ],
    }
    gloo = {
        "version": "2.9",
        "pg_config": {"1": {"desc": "control"}},
        "pg_status": {},
        "entries": [{"record_id": 0, "time_created_ns": 20}],
    }

    joined = join_dumps([nccl, gloo])

    assert [entry["time_created_ns"] for entry in joined["entries"]] == [10, 20, 30]
    assert joined["pg_config"] == {"0": {"desc": "default_pg"}, "1": {"desc": "control"}}
    assert joined["pg_status"] == nccl["pg_status"]
    assert joined["version"] == "2.10"
    assert join_dumps([nccl]) == nccl


@pytest.mark.gpu
@pytest.mark.distributed
def test_collectives_on_nccl_are_recorded(tmp_path: Path, started_warm: Starter) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    program = PROGRAM.format(run_dir=str(tmp_path), steps=12, entries=100)
    program = program.replace('"gloo"', '"nccl"').replace("step + 1)", 'step + 1, device="cuda")')
    succeeds(started_warm, program)
    flight = json.loads((tmp_path / "rank00000/flight.json").read_text())

    assert {entry["profiling_name"] for entry in flight["entries"]} == {"nccl:all_reduce"}
    assert status_of(tmp_path, "flight_recorder").state == "on"


def succeeds(start: Starter, program: str) -> None:
    done = start([sys.executable, "-c", program], os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.distributed
def test_the_traced_steps_are_covered_however_long_the_job_goes_on(
    tmp_path: Path, started_warm: Starter
) -> None:
    """Window: steps 4 to 7, whose all-reduces have 5 to 8 elements. The ring holds six steps."""
    succeeds(started_warm, PROGRAM.format(run_dir=str(tmp_path), steps=30, entries=30))
    flight = json.loads((tmp_path / "rank00000/flight.json").read_text())
    sizes = {entry["input_sizes"][0][0] for entry in flight["entries"]}

    assert sizes == {3, 4, 5, 6, 7, 8}
    assert status_of(tmp_path, "flight_recorder").state == "on"
    assert status_of(tmp_path, "flight_recorder").num_records == len(flight["entries"])


def test_without_a_process_group_there_is_nothing_to_dump(
    tmp_path: Path, started_warm: Starter
) -> None:
    program = f"""
import distprof_probes, torch
with distprof_probes.session({str(tmp_path)!r}) as session:
    session.step()
"""
    succeeds(started_warm, program)

    assert status_of(tmp_path, "flight_recorder").state == "unavailable"
    assert not (tmp_path / "rank00000/flight.json").exists()
