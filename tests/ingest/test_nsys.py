"""Exports of Nsight Systems: the same report as from torch.profiler; ranks, steps, bad files."""

import sqlite3
from pathlib import Path

import pytest

import distprof
from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest.discovery import discover
from distprof.ingest.nsys import database
from distprof.ingest.nsys.export import opened_process, processes_in, why_not_an_export
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
    monkeypatch.setattr(database, "_LEAST_SECONDS", -1e9)
    monkeypatch.setattr(database, "_STEPS_BETWEEN_LOOKS", 10)
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


# Payloads of NCCL ---------------------------------------------------------------------------------

COMM = -0x1234_5678_9ABC_DEF0  # an unsigned number of 64 bits, as SQLite keeps it
GROUP = f"{COMM & (1 << 64) - 1:#018x}"
KERNELS = {
    "ncclAllReduce": "AllReduce_Sum_bf16_RING_LL",
    "ncclAllGather": "AllGather_RING_LL",
    "ncclReduceScatter": "ReduceScatter_Sum_f32_RING_LL",
    "ncclSend": "SendRecv",
}


def payload(size):
    return {"NCCL_communicator_ID": COMM, "Message_size__bytes_": size, "Reduction_operation": 0}


def with_payloads(path, calls, *, pid=4_000, device=0, knows_ranks=True, **options):
    """Calls of NCCL with their launches and kernels, one every 10 ms.

    Args:
        path: Where the export is made.
        calls: For each kernel, the functions and sizes of the group that launches it; a function
            without a group is a text and a number.
        pid: Process id.
        device: GPU.
        knows_ranks: Whether the communicator was made during the recording.
        options: Of :class:`Export`.
    """
    export = Export(path, **{"has_payloads": True, **options})
    if knows_ranks:
        made = {"NCCL_communicator_ID": COMM, "No__of_ranks": 4, "Rank": 0}
        export.range(pid, pid, "ncclCommInitRankConfig", 0, 1, payload=made)
    for number, group in enumerate(calls, 1):
        t = number * 10 * NS
        if isinstance(group, list):
            export.range(pid, pid, "ncclGroupStart", t, t + 10)
            for place, (name, size) in enumerate(group):
                at = t + 100 * (1 + place)
                export.range(pid, pid, name, at, at + 50, payload=payload(size))
            export.range(pid, pid, "ncclGroupEnd", t + 1_000, t + 9_000)
            launch, name = t + 2_000, group[0][0]
        else:
            name, size = group
            export.range(pid, pid, name, t, t + 9_000, payload=payload(size))
            launch = t + 1_000
        export.call(pid, pid, "cudaLaunchKernelExC", launch, launch + 500, number)
        kernel = f"ncclDevKernel_{KERNELS[name]}(ncclDevKernelArgsStorage<4096ul>)"
        export.kernel(pid, kernel, t + 10_000, t + NS, device=device, stream=13, number=number)
    export.close()
    return path


def collectives_of(path, tmp_path):
    (rank,) = distprof.open_run(str(path), cache_dir=tmp_path / "cache").ranks
    table = rank.collectives
    texts = [table.coded(name).decode() for name in ("group", "dtype")]
    return [*texts, table["group_size"].tolist(), table["bytes"].tolist()]


def test_nccls_payloads_tell_the_size_and_the_group_of_each_collective(tmp_path):
    calls = [
        ("ncclAllReduce", 1 << 20), [("ncclAllGather", 1 << 10)], ("ncclReduceScatter", 1 << 12),
        [("ncclSend", 77)],
    ]  # fmt: skip
    groups, dtypes, sizes, num_bytes = collectives_of(
        with_payloads(tmp_path / "rank0.sqlite", calls), tmp_path
    )
    assert groups == [GROUP] * 4
    assert sizes == [4] * 4
    assert num_bytes == [1 << 20, 4 << 10, 4 << 12, 77]
    assert dtypes == [""] * 4  # a payload does not tell it


def test_of_a_communicator_from_before_the_recording_only_whole_buffers_are_known(tmp_path):
    calls = [("ncclAllReduce", 1 << 20), ("ncclAllGather", 1 << 10)]
    path = with_payloads(tmp_path / "rank0.sqlite", calls, knows_ranks=False)
    groups, _, _, num_bytes = collectives_of(path, tmp_path)
    assert groups == [GROUP] * 2
    assert num_bytes[0] == 1 << 20
    assert num_bytes[1] == -1


def test_of_several_calls_in_a_group_it_is_not_known_whose_the_kernel_is(tmp_path):
    calls = [[("ncclAllReduce", 8), ("ncclAllReduce", 16)], ("ncclAllReduce", 32)]
    groups, _, _, num_bytes = collectives_of(
        with_payloads(tmp_path / "rank0.sqlite", calls), tmp_path
    )
    assert (groups, num_bytes) == (["", GROUP], [-1, 32])


def test_an_export_without_such_tables_says_what_it_said(tmp_path):
    path = tmp_path / "rank0.sqlite"
    with_payloads(path, [("ncclAllReduce", 1 << 20)])
    database_of_it = sqlite3.connect(path)
    database_of_it.execute("DROP TABLE NVTX_EXPORT_TRANSLATION")
    database_of_it.commit()
    database_of_it.close()
    groups, _, _, num_bytes = collectives_of(path, tmp_path)
    assert (groups, num_bytes) == ([""], [-1])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE NVTX_EXPORT_TRANSLATION SET sanitizedName = 'x\" FROM StringIds; --'",
        "UPDATE NVTX_EVENTS_PAYLOAD_SCHEMAS SET globalPid = 'a', domainId = -1",
        "UPDATE NVTX_EVENTS_PAYLOAD_SCHEMAS SET payloadSchemaID = 'StringIds'",
        "UPDATE NVTX_EVENTS SET eventId = 'x'",
        "UPDATE {table} SET Message_size__bytes_ = -1",
        "UPDATE {table} SET Message_size__bytes_ = 4611686018427387904",
        "UPDATE {table} SET Message_size__bytes_ = 'many', NCCL_communicator_ID = NULL",
        "DROP TABLE {table}",
    ],
)
def test_damaged_payloads_are_left_out(damage, tmp_path):
    path = with_payloads(tmp_path / "rank0.sqlite", [("ncclAllReduce", 1 << 20)])
    database_of_it = sqlite3.connect(path)
    query = "SELECT name FROM sqlite_master WHERE sql LIKE '%Message_size__bytes_%'"
    ((table,),) = database_of_it.execute(query).fetchall()
    database_of_it.execute(damage.format(table=table))
    database_of_it.commit()
    database_of_it.close()
    _, _, _, num_bytes = collectives_of(path, tmp_path)
    assert num_bytes == [-1]


def test_ranks_with_payloads_have_bandwidths(tmp_path):
    folder = tmp_path / "exports"
    folder.mkdir()
    calls = [("ncclAllReduce", 64 << 20)] * 6
    for rank in range(2):
        with_payloads(folder / f"rank{rank}.sqlite", calls, device=rank, pid=4_000 + rank)
    report = analyzed(folder, tmp_path)
    (one,) = report.collectives.classes
    assert (one.bytes, one.group_size) == (64 << 20, 4)
    assert one.algbw_bytes_per_s is not None
