"""Records of NCCL Inspector: each collective as timed by each rank, for as long as a job runs.

A file holds the records of one process, and a folder (``nccl-inspector-<job>``) those of all.
"""

from __future__ import annotations

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, Blocks, beginning, opened, paths_of_logs
from distprof.ingest.source import Source
from distprof.run.evidence import InspectorLog

MAX_FILES = 20_000
BOUND = Bound(
    reads="an NCCL Inspector log",
    num_bytes=1 << 38,
    rows=2_000_000,
    names=1 << 18,
    beyond="skipped",
)
_SNIFFED_BYTES = 1 << 14
_ENDINGS = (".log", ".log.gz", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
_FORMAT = b'"inspector_output_format_version"'
_RECORDS = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')


def fits_nccl_inspector(source: str) -> bool:
    """Whether a source is such a file, or a folder with such files and no trace."""
    try:
        return any(_is_record_file(path) for path in paths_of_logs(source, MAX_FILES))
    except (OSError, ValueError, ImportError):
        return False


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
    start = beginning(path, _SNIFFED_BYTES, endings=_ENDINGS)
    return start.lstrip()[:1] == b"{" and _FORMAT in start and any(r in start for r in _RECORDS)


SOURCE = Source(
    bound=BOUND,
    place=45,
    origin="NCCL Inspector log",
    name="an NCCL Inspector log",
    fits=fits_nccl_inspector,
    read=read_nccl_inspector,
    notes="damaged",
)
