"""Timelines of pipeline ranks: by hand, damaged, and a real one."""

import json
from pathlib import Path

import numpy as np
import pytest

from distprof.errors import InputError
from distprof.ingest.kinds.timelines import fits_pipeline_timeline, read_pipeline_timeline
from distprof.ingest.open import open_run
from distprof.run.evidence import OperationLog

GOLDEN = Path(__file__).parents[2] / "golden" / "pipeline" / "primus-pp8-8gpu"
REFERENCE = (36.4, 35.7, 31.7, 31.7, 29.2, 26.7, 26.2, 17.3)
"""Share of iteration 20 in which each rank computes nothing, in percent."""


def iteration(forward, backward, total):
    return {
        "total": total,
        "memory": 1.5,
        "fwd_start": [start for start, _ in forward],
        "fwd_end": [end for _, end in forward],
        "bwd_start": [start for start, _ in backward],
        "bwd_end": [end for _, end in backward],
    }


def write(folder, *ranks, **config):
    for number, iterations in enumerate(ranks):
        (folder / f"pp_rank_{number}.json").write_text(json.dumps(iterations))
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


FIRST = iteration([(0, 10)], [(31, 51)], 51)
SECOND = iteration([(10.5, 20.5)], [(20.5, 30.5)], 40)


def test_every_slot_is_a_row_in_exact_nanoseconds(tmp_path):
    source = write(tmp_path, {"3": FIRST}, {"3": SECOND}, world_size=4, pp_size=2, tp_size=2)
    log = read_pipeline_timeline(source)
    table = log.operations
    assert table["rank"].tolist() == [0, 0, 1, 1]
    assert table["start_ns"].tolist() == [0, 31_000_000, 10_500_000, 20_500_000]
    assert table["end_ns"].tolist() == [10_000_000, 51_000_000, 20_500_000, 30_500_000]
    assert table.coded("kind").decode() == ["forward-compute", "backward-compute"] * 2
    assert (log.world_size, log.num_micro_batches) == (4, 1)
    assert dict(log.mesh) == {"pp": 2, "tp": 2}
    assert dict(log.step_ns) == {3: 51_000_000}


@pytest.mark.parametrize("size", ["pp_size", "vp_size", "dp_size", "world_size"])
@pytest.mark.parametrize("value", [10**7, 2**63, 2**70])
def test_a_size_that_no_job_has_is_refused(tmp_path, size, value):
    source = write(tmp_path, {"1": FIRST}, {"1": SECOND}, **{size: value})
    with pytest.raises(InputError, match=r"config\.json"):
        read_pipeline_timeline(source)


def test_ranks_whose_messages_leave_no_room_share_a_clock(tmp_path):
    log = read_pipeline_timeline(write(tmp_path, {"1": FIRST}, {"1": SECOND}))
    assert log.shares_clock
    assert "0.5 ms apart" in log.notes[-1]


def test_a_rank_far_ahead_of_its_messages_shares_no_clock(tmp_path):
    ahead = iteration([(0, 10)], [(10, 20)], 20)
    log = read_pipeline_timeline(write(tmp_path, {"1": FIRST}, {"1": ahead}))
    assert not log.shares_clock


def test_the_first_of_several_iterations_is_left_out(tmp_path):
    ranks = ({"1": FIRST, "2": FIRST, "3": FIRST}, {"1": SECOND, "2": SECOND, "3": SECOND})
    log = read_pipeline_timeline(write(tmp_path, *ranks))
    assert sorted(log.step_ns) == [2, 3]
    assert "Iteration 1" in log.notes[0]


def test_chunks_go_in_groups_of_as_many_micro_batches_as_ranks(tmp_path):
    slots = [(10 * k, 10 * k + 5) for k in range(8)]
    part = iteration(slots, [(100 + a, 100 + b) for a, b in slots], 200)
    log = read_pipeline_timeline(write(tmp_path, {"1": part}, {"1": part}, vp_size=2, pp_size=2))
    rows = log.operations["rank"] == 0
    chunk, batch = log.operations["chunk"][rows], log.operations["micro_batch"][rows]
    assert chunk.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0]
    assert batch.tolist() == [0, 1, 0, 1, 2, 3, 2, 3] * 2
    assert log.num_micro_batches == 4
    assert not log.shares_clock


def test_an_iteration_that_a_rank_lacks_is_left_out_and_said(tmp_path):
    log = read_pipeline_timeline(write(tmp_path, {"1": FIRST, "2": FIRST}, {"1": SECOND}))
    assert sorted(log.step_ns) == [1]
    assert "incomplete on some rank" in log.notes[0]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"1": 3}', '{"1": {"fwd_start": [1]}}', '{"x": {}}', '{"1": ' * 20_000, "\0"],
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "pp_rank_0.json").write_text(content)
    with pytest.raises(InputError, match=r"pp_rank_0\.json"):
        read_pipeline_timeline(str(tmp_path))


def test_ranks_without_a_whole_iteration_in_common_are_refused(tmp_path):
    short = iteration([], [], 3)
    with pytest.raises(InputError, match="none of them complete"):
        read_pipeline_timeline(write(tmp_path, {"1": FIRST}, {"1": short}))


def test_other_folders_are_none(tmp_path):
    (tmp_path / "rank0.json").write_text("{}")
    assert not fits_pipeline_timeline(str(tmp_path))
    assert not fits_pipeline_timeline(str(tmp_path / "nowhere"))
    assert not fits_pipeline_timeline("s3://bucket/folder")
    assert not fits_pipeline_timeline("bad\0name")


def test_a_real_timeline_has_the_idle_shares_of_its_reference():
    log = read_pipeline_timeline(str(GOLDEN))
    table = log.operations
    last = table["step"] == 20
    raw = [json.loads((GOLDEN / f"pp_rank_{rank}.json").read_text())["20"] for rank in range(8)]
    shares = []
    for rank in range(8):
        mine = last & (table["rank"] == rank)
        busy = (table["end_ns"] - table["start_ns"])[mine].sum()
        shares.append(100 * (1 - busy / (raw[rank]["total"] * 1e6)))
    assert shares == pytest.approx(REFERENCE, abs=0.06)
    assert log.shares_clock
    assert np.unique(table["step"]).tolist() == [18, 19, 20]


def test_a_folder_of_timelines_opens_as_a_run():
    run = open_run(str(GOLDEN))
    operations = run.get(OperationLog)
    assert operations is not None
    assert len(run) == 0
    assert dict(operations.mesh) == {"pp": 8, "dp": 1, "tp": 1, "ep": 1}
