"""Files of GPU sensors and errors, as written by monitoring tools, drivers and kernels."""

from __future__ import annotations

from pathlib import PurePosixPath

from distprof.bounds import Bound, expanded
from distprof.errors import InputError
from distprof.ingest.files import beginning, paths_of_logs
from distprof.ingest.kinds import machine, training_log
from distprof.ingest.sensors.amd import is_amd_json
from distprof.ingest.sensors.kernel import JOURNAL
from distprof.ingest.source import Source
from distprof.run.logs import DeviceLog
from distprof.run.run import Run

MAX_FILES = 10_000
BOUND = Bound(
    reads="GPU sensors or errors",
    num_bytes=1 << 36,
    rows=20_000_000,
    names=1 << 16,
    beyond="skipped",
    seconds_per_mb=5,
)
_SNIFFED_BYTES = 1 << 20
_SNIFFED_JSON = 1 << 14
_JSON = (".json", ".json.gz")
_NEVER = (".pkl", ".parquet", ".tar", ".zip", ".py", ".toml", ".md")
_WORDS = (b"NCCL INFO", b"NCCL WARN", b"traceEvents", b'"distprof.')  # of other kinds of files


def fits_device_log(source: str) -> bool:
    """Whether a source is such a file, or a folder with such files and no trace."""
    try:
        return any(_content(path) for path in paths_of_logs(source, MAX_FILES))
    except (OSError, ValueError, ImportError):
        return False


def read_device_log(source: str) -> DeviceLog:
    """Read a file, or all such files in a folder."""
    from distprof.ingest.sensors.read import EXPECTED, read_file

    paths = paths_of_logs(source, MAX_FILES)
    root = str(PurePosixPath(source).parent)
    if paths != [source]:
        paths = [path for path in paths if _content(path)]
        root = expanded(source)
    log = DeviceLog.merged([read_file(path, _shown(path, root)) for path in paths])
    is_empty = not (log.series or log.events or log.links or log.states)
    if is_empty and all(_content(path) != "errors" for path in paths):
        raise InputError(
            source,
            expected=EXPECTED,
            found="; ".join(log.notes)
            or (f"{log.num_lines:,} lines, none of them from a supported tool"),
            fix="name the unedited output of one of these tools",
        )
    return log


def _shown(path: str, root: str) -> str:
    """The path relative to what the user named."""
    shown = PurePosixPath(path)
    return str(shown.relative_to(root)) if shown.is_relative_to(root) else shown.name


def _content(path: str) -> str:
    """``samples``, ``errors`` or empty, by the name and the beginning of the file."""
    start = b"" if path.lower().endswith(_NEVER) else beginning(path, _SNIFFED_BYTES)
    if path.lower().endswith(_JSON) and JOURNAL.encode() not in start.split(b"\n", 1)[0]:
        return "samples" if is_amd_json(start[:_SNIFFED_JSON].decode("utf-8", "replace")) else ""
    if not start or b"\0" in start[:4096] or any(word in start for word in _WORDS):
        return ""
    from distprof.ingest.sensors.read import content_of, holds_tables

    if kind := content_of(start):
        return kind
    # Tables in the middle of text, unless a program printed them between its iterations.
    return "samples" if holds_tables(start) and not training_log.SOURCE.fits(path) else ""


def _join(run: Run, log: DeviceLog) -> Run:
    from distprof.ingest.sensors.join import with_device_log

    return with_device_log(run, log)


def _with_machines(run: Run) -> Run:
    """The run with the matrices of ``nvidia-smi topo -m`` that the same file holds."""
    return machine.SOURCE.joined(run, run.source) if machine.fits_machine(run.source) else run


SOURCE = Source(
    bound=BOUND,
    place=60,
    origin="file of GPU sensors or errors",
    name="GPU sensors or errors",
    fits=fits_device_log,
    read=read_device_log,
    notes="damaged",
    join=_join,
    complete=_with_machines,
)
