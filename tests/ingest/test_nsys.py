"""Exports of Nsight Systems: the same report as from torch.profiler; ranks, steps, bad files."""

import sqlite3
from pathlib import Path

import pytest

import distprof
from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest import nsys
from distprof.ingest.discovery import discover
from distprof.ingest.nsys import opened_process, processes_in, why_not_an_export
from tests.nsys_exports import Export, add_kineto

KINETO = Path(__file__).parents[1] / "golden" / "kineto"
DDP = KINETO / "ddp-a100-2gpu-rank0" / "nccl_data.json.gz"
DLRM = sorted((KINETO / "dlrm-v100-8gpu").rglob("*.gz"))
NS = 1_000_000


def export_of(path, traces, **options):
    export = Export(path, **options)
    for rank, trace in enumerate(traces):
        add_kineto(export, trace, 4_000 + rank, device=rank)
    export.close()
    return path


def small(path, *, steps=3, pid=4_000, device=0, names="step {}", **options):
    """A kernel and an all-reduce a step, with their launches, in ranges."""
    export = Export(path, **options)
    for step in range(steps):
        t = step * 10 * NS
        for number, (name, stream) in enumerate(
            [("gemm", 7), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 13)]
        ):
            at, key = t + (1 + 4 * number) * NS, 2 * step + number
            export.call(pid, pid, "cudaLaunchKernel", at - NS // 2, at - NS // 4, key)
            export.kernel(pid, name, at, at + 3 * NS, device=device, stream=stream, number=key)
        export.range(pid, pid, names.format(step), t, t + 10 * NS, by_id=step % 2 == 0)
    export.close()
    return path


def analyzed(path, tmp_path):
    return distprof.analyze(distprof.open_run(str(path), cache_dir=tmp_path / "cache"))


def test_an_export_gives_the_same_times_as_the_trace_of_torch_profiler(tmp_path):
    """Of what both record: kernels, copies, calls, ranges; operators are torch.profiler's."""
    own = analyzed(export_of(tmp_path / "rank0.sqlite", [DDP]), tmp_path)
    known = analyzed(DDP, tmp_path)
    assert own.breakdown.ranks == known.breakdown.ranks
    assert own.waterfall.ranks[0].exposed_copy_ns == known.waterfall.ranks[0].exposed_copy_ns
    assert own.overlap.ranks == known.overlap.ranks
    assert [k.name for k in own.kernels.kernels] == [k.name for k in known.kernels.kernels]
    assert own.findings[0].message == known.findings[0].message


def test_processes_of_one_export_are_ranks_and_are_matched(tmp_path):
    path = export_of(tmp_path / "node.sqlite", DLRM)
    assert [one.device for one in processes_in(path)] == [0, 1, 2, 3]
    own, known = analyzed(path, tmp_path), analyzed(KINETO / "dlrm-v100-8gpu", tmp_path)
    assert own.run.ranks == (0, 1, 2, 3)
    for field in ("exposed_transfer_ns", "exposed_wait_ns"):
        pairs = zip(own.waterfall.ranks, known.waterfall.ranks, strict=True)
        for mine, theirs in pairs:
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=0.01)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        ("step {}", (0, 1, 2)), ("iteration_{}", (0, 1, 2)), ("Train Step: {}", (0, 1, 2)),
        ("ProfilerStep#{}", (0, 1, 2)), ("train_step", (0, 1, 2)), ("epoch {}", ()),
    ],
)  # fmt: skip
def test_ranges_with_numbers_or_usual_names_are_steps(names, steps, tmp_path):
    path = small(tmp_path / "rank0.sqlite", names=names)
    run = distprof.open_run(str(path), cache_dir=tmp_path / "cache")
    table = run.ranks[0].steps
    found = tuple(table["step"].tolist()) if run.ranks[0].step_source.value != "capture" else ()
    assert found == steps


def test_what_the_file_says_of_itself(tmp_path):
    path = small(tmp_path / "rank_3.sqlite", host="gpu-7", gpus=("NVIDIA H200",))
    run = distprof.open_run(str(path), cache_dir=tmp_path / "cache")
    (rank,) = run.ranks
    assert (rank.rank, rank.rank_origin, rank.host) == (3, "file name", "gpu-7")
    assert (rank.device.name, rank.device.count) == ("NVIDIA H200", 1)
    assert rank.has_epoch
    assert len(rank.collectives) == 3


def test_exports_of_two_nodes_are_numbered_in_order(tmp_path):
    folder = tmp_path / "exports"
    folder.mkdir()
    for node in range(2):
        export = Export(folder / f"node{node}.sqlite", host=f"node-{node}")
        for gpu in range(2):
            end = (2 + 2 * node + gpu) * NS
            export.call(10 + gpu, 1, "cudaLaunchKernel", 0, NS, gpu)
            export.kernel(10 + gpu, "gemm", NS, end, device=gpu, stream=7, number=gpu)
        export.close()
    (folder / "other.sqlite").write_bytes(b"nothing")
    found = discover(str(folder))
    assert [Path(t.path).name for t in found.traces] == ["node0.sqlite"] * 2 + ["node1.sqlite"] * 2
    assert [gap.what for gap in found.gaps] == ["not-a-trace"]
    run = distprof.open_run(str(folder), cache_dir=tmp_path / "cache")
    assert [(rank.rank, rank.host) for rank in run.ranks] == [
        (0, "node-0"), (1, "node-0"), (2, "node-1"), (3, "node-1"),
    ]  # fmt: skip


def test_the_cache_keeps_processes_apart(tmp_path):
    path = export_of(tmp_path / "node.sqlite", DLRM[:2])
    first = analyzed(path, tmp_path)
    again = analyzed(path, tmp_path)
    assert first.breakdown == again.breakdown
    assert first.breakdown.ranks[0] != first.breakdown.ranks[1]


def test_a_report_says_how_to_export_it(tmp_path, capsys):
    (tmp_path / "job.nsys-rep").write_bytes(b"binary")
    assert main(["analyze", str(tmp_path / "job.nsys-rep")]) == 3
    assert "nsys export --type sqlite" in capsys.readouterr().err


# Hostile and damaged files ------------------------------------------------------------------------


def test_a_database_without_kernels_says_what_to_record(tmp_path):
    Export(tmp_path / "empty.sqlite").close()
    with pytest.raises(InputError, match="without kernels") as refused:
        discover(str(tmp_path / "empty.sqlite"))
    assert "--trace=cuda,nvtx" in str(refused.value)


def test_views_and_virtual_tables_are_not_queried(tmp_path):
    path = tmp_path / "view.sqlite"
    db = sqlite3.connect(path)
    db.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL "
        'SELECT n + 1 FROM t) SELECT n AS start, n AS "end", n AS deviceId, n AS streamId, '
        "n AS correlationId, n AS globalPid FROM t"
    )
    db.execute(
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE USING fts5(start, end, deviceId, "
        "streamId, correlationId, globalPid)"
    )
    db.commit()
    db.close()
    assert why_not_an_export(path) == "a database without kernels"


def test_a_damaged_database_is_refused(tmp_path):
    path = small(tmp_path / "rank0.sqlite", steps=200)
    data = bytearray(path.read_bytes())
    data[4_096 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4_096)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"cannot be read|without kernels"):
        analyzed(path, tmp_path)


def test_values_of_other_types_cost_only_their_rows(tmp_path):
    path = small(tmp_path / "rank0.sqlite")
    db = sqlite3.connect(path)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        db.execute(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")
        last = f"rowid = (SELECT MAX(rowid) FROM {table})"
        db.execute(f"UPDATE {table} SET start = 'soon' WHERE {last}")
    db.execute("UPDATE StringIds SET value = X'FF00FE' WHERE id = 1")
    db.commit()
    db.close()
    assert len(analyzed(path, tmp_path).breakdown.ranks) == 1


def test_names_with_control_characters_reach_no_terminal(tmp_path, capsys):
    path = small(tmp_path / "rank0.sqlite", host="\x1b[2Jevil", gpus=("\x1b]0;owned\x07",))
    assert main(["analyze", str(path), "--full", "--cache-dir", str(tmp_path / "cache")]) in (0, 1)
    assert "\x1b" not in capsys.readouterr().out


def test_a_query_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    path = small(tmp_path / "rank0.sqlite", steps=300)
    monkeypatch.setattr(nsys, "_LEAST_SECONDS", -1e9)
    monkeypatch.setattr(nsys, "_STEPS_BETWEEN_LOOKS", 10)
    with pytest.raises(InputError, match="interrupted"):
        processes_in(path)


def test_nothing_is_written_beside_an_export(tmp_path):
    folder = tmp_path / "exports"
    folder.mkdir()
    path = small(folder / "rank0.sqlite")
    before = path.read_bytes()
    analyzed(path, tmp_path)
    assert [one.name for one in folder.iterdir()] == ["rank0.sqlite"]
    assert path.read_bytes() == before


def test_a_name_with_signs_of_a_url_is_a_name(tmp_path):
    path = small(tmp_path / "rank0 ?mode=rwc#&x.sqlite")
    assert len(processes_in(path)) == 1


def test_the_made_trace_is_json(tmp_path):
    import json

    path = small(tmp_path / "rank0.sqlite")
    (process,) = processes_in(path)
    with opened_process(path, process.number) as stream:
        said = json.loads(stream.read(1 << 24))
    assert {event["cat"] for event in said["traceEvents"]} == {
        "kernel", "cuda_runtime", "user_annotation",
    }  # fmt: skip
