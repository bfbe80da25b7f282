"""Exports of Nsight Systems that are cut, of other tools, or made to harm."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.broken_inputs.intact import EITHER, REFUSED, Build, Cases
from tests.nsys_exports import Export

CASES = Cases()
NS = 1_000_000


def small(path: Path) -> Path:
    """An export of ten kernels."""
    export = Export(path)
    for number in range(10):
        at = number * 10 * NS
        export.call(7, 7, "cudaLaunchKernel", at, at + NS, number)
        export.kernel(7, "gemm", at + NS, at + 5 * NS, device=0, stream=7, number=number)
    export.close()
    return path


def changed(*statements: str) -> Build:
    """An export on which statements of SQL were run."""

    def build(folder: Path) -> Path:
        path = small(folder / "rank0.sqlite")
        db = sqlite3.connect(path)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.close()
        return path

    return build


def cut(share: float) -> Build:
    """The first part of an export."""

    def build(folder: Path) -> Path:
        path = small(folder / "rank0.sqlite")
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        return path

    return build


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
CASES.add("export cut in half", REFUSED, cut(0.5))
CASES.add("export cut in its first page", REFUSED, cut(0.01))
CASES.add("export without kernels", REFUSED, changed(f"DELETE FROM {KERNEL}"))
CASES.add("export without a table of names", EITHER, changed("DROP TABLE StringIds"))
CASES.add("export without calls", EITHER, changed("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"))
CASES.add(
    "export with a view in place of kernels",
    REFUSED,
    changed(
        f"DROP TABLE {KERNEL}",
        f"CREATE VIEW {KERNEL} AS WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) "
        'SELECT n AS start, n AS "end", n AS deviceId, n AS streamId, n AS correlationId, '
        "n AS globalPid FROM t",
    ),
)
CASES.add("export with a text as time", EITHER, changed(f"UPDATE {KERNEL} SET start = 'now'"))
CASES.add("export with absurd times", EITHER, changed(f"UPDATE {KERNEL} SET start = 1 << 62"))
CASES.add(
    "export with a name that is not text",
    EITHER,
    changed("UPDATE StringIds SET value = X'1B5B324AFF00'"),
)
CASES.add(
    "export with an evil name",
    EITHER,
    changed("UPDATE StringIds SET value = char(27) || '[2J' || char(8238)"),
)


def written(name: str, data: bytes) -> Build:
    """A file of this name."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return build


def rocprof(text: str) -> Build:
    """A file that begins as rocprofv3 writes it."""
    return written("1_results.json", text.encode())


def packets(data: bytes) -> Build:
    """A file that begins as a Perfetto trace of rocprofv3."""
    return written("1_results.pftrace", data)


def packet(*fields: tuple[int, bytes]) -> bytes:
    """A packet, each part of which is shorter than 128 bytes."""
    inner = b"".join(bytes((key, len(part))) + part for key, part in fields)
    return bytes((0x0A, len(inner))) + inner


TRACK = b"\xe2\x03\x29\x08\x05\x12\x25COMPUTE AGENT [4] STREAM [0] (GPU)   "
TRACK_PACKET = bytes((0x0A, len(TRACK))) + TRACK
CASES.add("Perfetto trace of a track alone", REFUSED, packets(TRACK_PACKET))
CASES.add("Perfetto trace that is cut", REFUSED, packets(TRACK_PACKET + b"\x0a\x7fabc"))
CASES.add(
    "Perfetto trace of an endless number", REFUSED, packets(TRACK_PACKET + b"\x0a" + b"\xff" * 99)
)
CASES.add(
    "Perfetto trace of a packet of 4 GB",
    REFUSED,
    packets(TRACK_PACKET + b"\x0a\xff\xff\xff\xff\x0f"),
)
CASES.add("Perfetto trace with a group", REFUSED, packets(TRACK_PACKET + packet((0x5B, b"a"))))
CASES.add(
    "Perfetto trace with noise behind", REFUSED, packets(TRACK_PACKET + bytes(range(256)) * 9)
)

TOOL = '{"rocprofiler-sdk-tool": ['
CASES.add("rocprofv3 cut after its name", REFUSED, rocprof(TOOL))
CASES.add("rocprofv3 with deep values", REFUSED, rocprof(TOOL + "[" * 90_000))
CASES.add(
    "rocprofv3 with absurd records",
    EITHER,
    rocprof(
        TOOL
        + '{"buffer_records": {"kernel_dispatch": [{"start_timestamp": 5, "end_timestamp": '
        + "9" * 18
        + '}, {"kind": -1, "start_timestamp": -7}]}}]}'
    ),
)
