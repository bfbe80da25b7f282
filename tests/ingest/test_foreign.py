"""Recordings of other tools are named, with what to do instead."""

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

import distprof
from distprof.cli.app import main
from distprof.errors import OtherVerbError

FILES = {
    "report.nsys-rep": (b"\0", "Nsight Systems"),
    "kernels.ncu-rep": (b"\0", "Nsight Compute"),
    "results.json": (b'{"rocprofiler-sdk-tool": [{}]}', "rocprofv3"),
    "job.pftrace": (b"\n\x10", "Perfetto"),
    "host.xplane.pb": (b"\n\x10", "XPlane"),
    "chakra.0.et": (b"\n\x10", "execution trace"),
    "et.json": (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}', "Chakra"),
    "plug-in.json": (
        b'[\n{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 1.5}]',
        "profiler plug-in",
    ),
    "inspector.jsonl": (b'{"header":{"rank":0},"coll_perf":{"coll_sn":1}}', "NCCL Inspector"),
    "events.out.tfevents.1": (b"\x18\0\0\0\0\0\0\0brain.Event:2", "TensorBoard"),
    "snapshot.pickle": (b"\x80\x04}", "pickle"),
    "job.qdstrm": (b"\0", "Nsight Systems"),
    "trace.otf2": (b"OTF2", "OTF2"),
    "1_kernel_trace.csv": (
        b'"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n',
        "a rocprofv3 table",
    ),
    "all_reduce.log": (
        b"# nThread 1 nGpus 8\nNCCL version 2.20.5+cuda12.4\n#  out-of-place  in-place\n"
        b"#  size time algbw busbw\n",
        "nccl-tests",
    ),
    "part_of_rank_0.json": (b'{"1": {"total": 3.0, "fwd_start": [], "bwd_start": []}}', "folder"),
    "py-spy.json": (
        b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}',
        "speedscope",
    ),
    "rank0.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "rank1.json": (b"<!DOCTYPE html><html><body>404", "HTML page"),
    "traces.tgz": (b"\x1f\x8b", "tar xf"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("in_folder", [False, True])
def test_the_tool_is_named(
    name: str, in_folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, tool = FILES[name]
    (tmp_path / name).write_bytes(content)
    assert main(["analyze", str(tmp_path if in_folder else tmp_path / name)]) == 3
    said = capsys.readouterr().err
    assert tool in said
    assert name in said or said.startswith("Output of nccl-tests, cut")


DUMPS = {
    "_dump_0": b"\x80\x02}(X\7\0\0\0versionX\3\0\0\x002.1X\x09\0\0\0pg_config}",
    "nccl_trace_rank_0": b'{"version": "2.9", "pg_config": {}, "entries": []}',
}


@pytest.mark.parametrize("name", DUMPS)
@pytest.mark.parametrize("in_folder", [False, True])
def test_the_function_names_the_verb_that_reads_dumps(
    name: str, in_folder: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(DUMPS[name])
    with pytest.raises(OtherVerbError, match=f"{name}:(.|\n)*try: distprof hang "):
        distprof.analyze(tmp_path if in_folder else tmp_path / name)


@pytest.mark.parametrize("name", ["results.json", "et.json", "inspector.jsonl", "all_reduce.log"])
def test_a_file_that_was_packed_is_named_too(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, tool = FILES[name]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    assert main(["analyze", str(tmp_path / f"{name}.gz")]) == 3
    assert tool in capsys.readouterr().err


CHROME = {
    "VizTracer": {"traceEvents": [{"cat": "FEE"}], "viztracer_metadata": {"overflow": False}},
    "JAX": {"metadata": {"highres-ticks": True}, "traceEvents": [{"args": {"hlo_op": "fusion.1"}}]},
    "TensorFlow": {"traceEvents": [{"cat": "Op", "args": {"op": "MatMul"}}]},
    "Chrome or Perfetto": {"metadata": {"clock-domain": "MONO"}, "traceEvents": [{"cat": "blink"}]},
    "another tool, with events of mine": {"traceEvents": [{"cat": "mine"}]},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tool", CHROME)
def test_a_chrome_trace_of_another_tool_is_no_trace_of_a_gpu(
    tool: str, packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a file has the same format, and was reported as a rank that lost its GPU."""
    content = dict(CHROME[tool])
    usual = {"ph": "X", "name": "work", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}
    content["traceEvents"] = [{**usual, **event} for event in content["traceEvents"]]
    text = json.dumps(content).encode()
    file = tmp_path / ("trace.json.gz" if packed else "trace.json")
    file.write_bytes(gzip.compress(text) if packed else text)
    assert main(["analyze", str(file)]) == 3
    said = capsys.readouterr().err
    assert f"a Chrome trace from {tool}" in said
    assert "torch.profiler" in said


def test_a_trace_of_an_unknown_accelerator_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds what torch.profiler says about itself, so its unknown events are a device's."""
    event = {"ph": "X", "cat": "npu_kernel", "name": "k", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}
    content = {"schemaVersion": 1, "traceEvents": [event]}
    (tmp_path / "trace.json").write_text(json.dumps(content))
    assert main(["analyze", str(tmp_path / "trace.json")]) == 0
    assert "npu_kernel" in capsys.readouterr().out


def test_a_database_is_named_by_its_first_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(tmp_path / "export.db") as connection:
        connection.execute("create table CUPTI_ACTIVITY_KIND_KERNEL(start)")
    connection.close()
    assert main(["analyze", str(tmp_path / "export.db")]) == 3
    assert "SQLite" in capsys.readouterr().err


def test_a_trace_that_mentions_another_tool_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = '{"ph":"X","cat":"cpu_op","name":"brain.Event:","ts":1,"dur":2,"pid":1,"tid":1}'
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": [{events}]}}')
    assert main(["analyze", str(tmp_path / "trace.json")]) == 0
    assert "brain" not in capsys.readouterr().err


def test_text_that_begins_with_a_progress_bar_is_named_as_text(tmp_path, capsys):
    path = tmp_path / "train.err"
    path.write_bytes(
        b"\r".join(b"Loading: %d%%| | %d/99999 [00:00<09:00, 12.3it/s]" % (n, n) for n in range(99))
    )
    assert main(["analyze", str(path)]) != 0
    assert "text with none of them, which begins with “Loading: 0%" in capsys.readouterr().err


def test_a_summary_at_the_end_of_a_long_text_is_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "communication.log"
    path.write_text(
        "Msg Size  Count  Total Lat (ms)  Avg Lat (ms)  busbw_avg (Gbps)\n"
        + "1.0 KB       20           20.00          1.00              0.00\n" * 300
        + "Op          Total Count  Total Lat (ms)  W.Avg Lat (ms)\n"
        + "all_reduce         6000         6000.00            1.00  0.00  0.00\n"
    )
    assert main(["analyze", str(path)]) == 3
    assert "all_reduce 6000.00 ms" in capsys.readouterr().err
