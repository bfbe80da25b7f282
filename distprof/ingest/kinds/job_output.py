"""What a job printed: watchdogs, how processes ended, tracebacks, stacks. Files, folders, globs.

The same files may hold NCCL's log and the iterations of the training program: those are read too.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from distprof.bounds import Bound, expanded
from distprof.errors import InputError, UsageError
from distprof.ingest.discovery import rank_in_name
from distprof.ingest.files import DAMAGE, NOT_LOGS, begins_object, opened, paths_of_logs, read_some
from distprof.ingest.kinds import training_log
from distprof.ingest.kinds.device_log import fits_device_log
from distprof.ingest.source import Source
from distprof.run.logs import JobOutput
from distprof.run.run import Run

MAX_FILES = 20_000
BOUND = Bound(
    reads="the output of a job", num_bytes=1 << 38, rows=20_000, names=1 << 17, beyond="skipped"
)
_SNIFFED_BYTES = 1 << 23
_OF_KERNELS = {"xid", "host_memory", "crash"}
_ERROR = {"error", "mixed"}
_WEAK = {"cancelled", "stopped", "waiting", *_ERROR}
_OUTPUT_NAME = re.compile(
    r"(?:\.(?:log|out|err|txt|[oe]\d{1,9})(?:[.-]\d{1,9})?(?:\.gz)?|^[^.]{1,100})$", re.IGNORECASE
)
"""Names under which output is kept; in a folder, other files are not opened."""

_NOT_OUTPUT = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|node_modules)/|(?:^|/)[^/]{0,80}(?:requirements|license|"
    r"licence|copying|readme)[^/]{0,80}$",
    re.IGNORECASE,
)
_OTHER_KINDS = (*NOT_LOGS, ".pickle", ".toml", ".html", ".md")


def paths_of_output(source: str) -> list[str]:
    """The files that a file, folder or glob names; empty for a folder with a trace."""
    if "://" not in source and not Path(expanded(source)).exists() and set("*?[") & set(source):
        paths = sorted(glob.glob(expanded(source), recursive=True))  # noqa: PTH207 - untrusted text
        return [path for path in paths if Path(path).is_file()][:MAX_FILES]
    paths = paths_of_logs(source, MAX_FILES)
    if paths == [source]:
        return paths
    return [p for p in paths if _OUTPUT_NAME.search(Path(p).name) and not _NOT_OUTPUT.search(p)]


def fits_job_output(source: str) -> bool:
    """Whether a source holds lines about the end of a job; never raises for other files."""
    try:
        paths = paths_of_output(source)
        return any(_is_output(path, is_alone=paths == [source]) for path in paths)
    except (OSError, ValueError, ImportError, UsageError):
        return False


def _is_output(path: str, *, is_alone: bool) -> bool:
    """Whether the beginning or the end of a file holds such lines.

    A kernel's log is a kind of its own. A job that was cancelled has its iterations to show, if
    there are several. The line of an error alone counts only in a file that is named itself.
    """
    kinds = _kinds(path)
    if kinds <= _ERROR and not is_alone:
        return False
    if kinds and kinds <= _OF_KERNELS:
        return not fits_device_log(path)
    return bool(kinds) and (not kinds <= _WEAK or not training_log.fits_training_log(path, least=2))


def _kinds(path: str) -> set[str]:
    from distprof.ingest.output.read import kinds_in

    if path.lower().endswith(_OTHER_KINDS):
        return set()
    try:
        with opened(path) as stream:
            start, _ = read_some(stream, _SNIFFED_BYTES)
            if begins_object(start) or b"\0" in start[:4096]:
                return set()
            kinds = kinds_in(start)
            if kinds - _ERROR or len(start) < _SNIFFED_BYTES:
                return kinds
            end = start
            while len(end) == _SNIFFED_BYTES:
                before, (end, _) = end, read_some(stream, _SNIFFED_BYTES)
            return kinds | kinds_in(before + end)
    except (*DAMAGE, UsageError):
        return set()


def read_job_output(source: str) -> JobOutput:
    """Read the output of a job."""
    from distprof.ingest.output.read import read_output

    paths = [path for path in paths_of_output(source) if not path.lower().endswith(_OTHER_KINDS)]
    output = read_output([(path, Path(path).name, rank_in_name(path)) for path in paths])
    if not (output.events or output.stacks):
        raise InputError(
            source,
            expected="the output of a job that failed or stands still",
            found="; ".join(output.notes) or f"{output.num_lines:,} lines, none about its end",
            fix="name the whole output of the ranks and of their launcher",
        )
    return output


def _with_other_logs(run: Run) -> Run:
    """The run with what else the files hold: NCCL's log, iterations of the program."""
    from distprof.ingest.kinds import nccl_log

    source = run.source
    if nccl_log.fits_nccl_log(source):
        run = nccl_log.SOURCE.joined(run, source)
    if Path(expanded(source)).is_file() and training_log.SOURCE.fits(source):
        run = training_log.SOURCE.joined(run, source)
    return run


SOURCE = Source(
    bound=BOUND,
    place=46,
    origin="output of a job",
    name="the output of a job",
    fits=fits_job_output,
    read=read_job_output,
    notes="damaged",
    complete=_with_other_logs,
)
