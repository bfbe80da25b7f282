"""Files that are no trace at all: what users point at by mistake."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable

from tests.broken_inputs.intact import (
    EITHER,
    GZ,
    INTACT,
    NOISE,
    REFUSED,
    Build,
    Cases,
    Trace,
    changed,
    content,
    dumped,
    intact,
)

CASES = Cases()


def _archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("trace.json", INTACT)
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            member = tarfile.TarInfo("trace.json")
            member.size = len(INTACT)
            archive.addfile(member, io.BytesIO(INTACT))
    return out.getvalue()


REPORT = {"schema": "distprof.report/2", "distprof_version": "0.1.0", "findings": []}
RUN_JSON = {"schema": "distprof.run/1", "command": ["python", "train.py"], "world_size": 8}
EXECUTION_TRACE = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "now", "nodes": []}
CHROME = {
    "traceEvents": [
        {"ph": p, "name": "x", "ts": t, "pid": 1, "tid": 1} for t, p in [(1, "B"), (2, "E")]
    ]
}
PAGE = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head><body>no</body></html>"

NOT_A_TRACE = {
    "empty file": (b"", "trace.json"),
    "zero-length gz": (b"", "trace.json.gz"),
    "gz of nothing": (gzip.compress(b"", mtime=0), "trace.json.gz"),
    "only whitespace": (b" \n\t \r\n" * 50, "trace.json"),
    "only a byte order mark": (b"\xef\xbb\xbf", "trace.json"),
    "binary noise": (NOISE, "trace.json"),
    "binary noise named gz": (NOISE, "trace.json.gz"),
    "a page of zero bytes": (bytes(4096), "trace.json"),
    "ELF program": (b"\x7fELF\x02\x01\x01" + NOISE, "trace.json"),
    "PNG picture": (b"\x89PNG\r\n\x1a\n" + NOISE, "trace.json"),
    "HTML error page": (PAGE, "trace.json"),
    "HTML error page named gz": (PAGE, "trace.json.gz"),
    "HTML error page in gz": (gzip.compress(PAGE, mtime=0), "trace.json.gz"),
    "XML error of an object store": (b'<?xml version="1.0"?><Error/>', "trace.json.gz"),
    "git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "t.json"),
    "gz of gz": (gzip.compress(GZ, mtime=0), "trace.json.gz"),
    "zip archive": (_archive("zip"), "trace.json.gz"),
    "tar archive": (_archive("tar"), "trace.json.gz"),
    "zstd frame": (b"\x28\xb5\x2f\xfd" + NOISE, "trace.json.gz"),
    "zlib stream": (zlib.compress(INTACT), "trace.json.gz"),
    "gz header only": (GZ[:10], "trace.json.gz"),
    "gz with noise for content": (GZ[:10] + NOISE, "trace.json.gz"),
    "Parquet file": (b"PAR1" + NOISE + b"PAR1", "trace.json"),
    "pickle": (pickle.dumps(intact()), "trace.json"),
    "Perfetto protobuf": (b"\x0a\x1a\x08\x01\x10\x02" * 64, "trace.json"),
    "log file": (b"[rank0]: step 10 loss 2.31\n" * 20, "trace.json"),
    "CSV file": (b"step,loss\n1,2.5\n2,2.4\n", "trace.json"),
    "UTF-16 text": (json.dumps(intact()).encode("utf-16"), "trace.json"),
    "UTF-32 text": (json.dumps(intact()).encode("utf-32"), "trace.json"),
    "Python repr": (repr(intact()).encode(), "trace.json"),
    "YAML": (b"traceEvents:\n  - ph: X\n    name: gemm\n", "trace.json"),
    "JSON null": (b"null", "trace.json"),
    "JSON number": (b"42", "trace.json"),
    "JSON string": (b'"traceEvents"', "trace.json"),
    "JSON true": (b"true", "trace.json"),
    "empty object": (b"{}", "trace.json"),
    "empty list": (b"[]", "trace.json"),
    "list of an empty list": (b"[[]]", "trace.json"),
    "list of numbers": (b"[1, 2, 3]", "trace.json"),
    "saved report": (dumped(REPORT), "trace.json"),
    "run description": (dumped(RUN_JSON), "trace.json"),
    "execution trace": (dumped(EXECUTION_TRACE), "trace.json"),
    "notebook": (dumped({"cells": [], "nbformat": 4, "metadata": {}}), "trace.json"),
    "trace of a browser": (dumped(CHROME), "trace.json"),
    "traceEvents is null": (b'{"traceEvents": null}', "trace.json"),
    "traceEvents is a number": (b'{"traceEvents": 7}', "trace.json"),
    "traceEvents is a string": (b'{"traceEvents": "[]"}', "trace.json"),
    "traceEvents is an object": (b'{"traceEvents": {"0": {}}}', "trace.json"),
    "traceEvents is empty": (b'{"traceEvents": []}', "trace.json"),
    "traceEvents holds numbers": (b'{"traceEvents": [1, 2, 3]}', "trace.json"),
    "traceEvents holds strings": (b'{"traceEvents": ["X", "X"]}', "trace.json"),
    "traceEvents holds nulls": (b'{"traceEvents": [null, null]}', "trace.json"),
    "traceEvents holds lists": (b'{"traceEvents": [[{"ph": "X"}], []]}', "trace.json"),
    "traceEvents holds empty objects": (b'{"traceEvents": [{}, {}, {}]}', "trace.json"),
    "only the word traceEvents": (b'{"traceEvents": [', "trace.json"),
}
for _name, (_data, _file) in NOT_A_TRACE.items():
    CASES.add(_name, REFUSED, content(_data, _file))


# Events of which nothing can be measured ---------------------------------------------------------


def keep(wanted: Callable[[Trace], bool]) -> Build:
    def change(trace: Trace) -> None:
        trace["traceEvents"] = [e for e in trace["traceEvents"] if wanted(e)]

    return changed(change)


CASES.add("only metadata events", REFUSED, keep(lambda e: e["ph"] == "M"))
CASES.add("one host event", EITHER, keep(lambda e: e.get("name") == "ProfilerStep#3"))
CASES.add("no device events", EITHER, keep(lambda e: e.get("cat") not in ("kernel", "gpu_memcpy")))
CASES.add("no host events", EITHER, keep(lambda e: e.get("cat") == "kernel"))
CASES.add("one kernel", EITHER, keep(lambda e: e.get("name") == "gemm" and e["ts"] < 500))


def only_phase(phase: str) -> Build:
    def change(trace: Trace) -> None:
        for event in trace["traceEvents"]:
            event["ph"] = phase

    return changed(change)


for _phase in ("s", "C", "i", "B", "?", "", "XX"):
    CASES.add(f"every ph is {_phase!r}", REFUSED, only_phase(_phase))
