"""Recordings of other tools are named, with what to do instead."""

import sqlite3
from pathlib import Path

import pytest

from distprof.cli.app import main

FILES = {
    "report.nsys-rep": (b"\0", "Nsight Systems"),
    "kernels.ncu-rep": (b"\0", "Nsight Compute"),
    "results.json": (b'{"rocprofiler-sdk-tool": [{}]}', "rocprofv3"),
    "job.pftrace": (b"\n\x10", "Perfetto"),
    "host.xplane.pb": (b"\n\x10", "XPlane"),
    "chakra.0.et": (b"\n\x10", "execution trace"),
    "et.json": (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}', "Chakra"),
    "inspector.jsonl": (b'{"header":{"rank":0},"coll_perf":{"coll_sn":1}}', "NCCL Inspector"),
    "events.out.tfevents.1": (b"\x18\0\0\0\0\0\0\0brain.Event:2", "TensorBoard"),
    "snapshot.pickle": (b"\x80\x04}", "pickle"),
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
    assert name in said


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
