"""What NCCL records of a running job: NCCL Inspector's records, and the output of ``ncclras``.

A file of NCCL Inspector holds each collective as one process timed it, for as long as the job runs;
a folder (``nccl-inspector-<job>``) holds those of all.
"""

from __future__ import annotations

import msgspec

from distprof.bounds import Bound, within
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, Blocks, any_log, beginning, opened, paths_of_logs
from distprof.ingest.kinds import Source
from distprof.ingest.nccl.ras import is_ras, parse_ras
from distprof.run.evidence import InspectorLog, RasStatus

RAS_BOUND = Bound(reads="output of ncclras", num_bytes=1 << 26, rows=5_000_000, depth=1_000)
_SNIFFED_BYTES = 1 << 16
_ENDINGS = (".txt", ".json", ".log", ".out", ".txt.gz", ".json.gz", ".log.gz")


def fits_nccl_ras(source: str) -> bool:
    """Whether a source begins like such output; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=_ENDINGS)
    return is_ras(start.decode("utf-8", "replace"))


def read_nccl_ras(source: str) -> RasStatus:
    """Read the last snapshot of a file."""
    found = "no snapshot"
    try:
        with opened(source) as stream:
            data = within(stream.read(RAS_BOUND.num_bytes + 1), RAS_BOUND.num_bytes, source)
        status = parse_ras(data.decode("utf-8", "replace"))
    except (*DAMAGE, msgspec.DecodeError, RecursionError) as error:
        status, found = None, " ".join(f"{error}".split())[:200]
    if status is None:
        raise InputError(
            source,
            expected="output of ncclras -v, or of ncclras -f json",
            found=found,
            fix="save the whole output of ncclras",
        )
    return status


RAS = Source(
    bound=RAS_BOUND,
    place=48,
    origin="output of ncclras",
    name="output of ncclras",
    fits=fits_nccl_ras,
    read=read_nccl_ras,
    notes="damaged",
)


MAX_FILES = 20_000
INSPECTOR_BOUND = Bound(
    reads="an NCCL Inspector log",
    num_bytes=1 << 38,
    rows=2_000_000,
    names=1 << 18,
    beyond="skipped",
)
_INSPECTOR_BYTES = 1 << 14
_INSPECTOR_ENDINGS = (".log", ".log.gz", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
_FORMAT = b'"inspector_output_format_version"'
_RECORDS = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')


def fits_nccl_inspector(source: str) -> bool:
    """Whether a source is such a file, or a folder with such files and no trace."""
    return any_log(source, MAX_FILES, _is_record_file)


def read_nccl_inspector(source: str) -> InspectorLog:
    """Read a file, or all such files in a folder."""
    from distprof.ingest.nccl.inspector import Inspection

    paths = paths_of_logs(source, MAX_FILES)
    if paths != [source]:
        paths = [path for path in paths if _is_record_file(path)]
    inspection = Inspection()
    notes: list[str] = []
    num_bytes = 0
    for path in paths:
        inspection.begin_file()
        try:
            with opened(path) as stream:
                blocks = Blocks(stream)
                for block in blocks:
                    inspection.take(block)
        except DAMAGE as error:
            notes.append(f"Cannot read {path}: {' '.join(str(error).split())}.")
            continue
        num_bytes += blocks.num_bytes
        if blocks.damage:
            notes.append(f"{path} was read only up to the damage: {blocks.damage}.")
    log = inspection.result(num_bytes, notes)
    if not log.num_records:
        raise InputError(
            source,
            expected="records of NCCL Inspector, one JSON object per line",
            found="; ".join(log.notes) or "no record of an operation",
            fix="name NCCL_INSPECTOR_DUMP_DIR, or a file in it, after the job has communicated",
        )
    return log


def _is_record_file(path: str) -> bool:
    start = beginning(path, _INSPECTOR_BYTES, endings=_INSPECTOR_ENDINGS)
    return start.lstrip()[:1] == b"{" and _FORMAT in start and any(r in start for r in _RECORDS)


INSPECTOR = Source(
    bound=INSPECTOR_BOUND,
    place=45,
    origin="NCCL Inspector log",
    name="an NCCL Inspector log",
    fits=fits_nccl_inspector,
    read=read_nccl_inspector,
    notes="damaged",
)

SOURCES = (RAS, INSPECTOR)
