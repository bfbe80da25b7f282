"""The run directory: new for each job, and with a run.json from the start."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import msgspec

from distprof.artefacts import RANK_DIR_FORMAT, RUN_FILE, RUN_SCHEMA
from distprof.artefacts.run_file import RunFile
from distprof.errors import InputError, SchemaError, UsageError

DEFAULT_FOLDER = Path("runs")
_MAX_RUN_FILE_BYTES = 256 * 2**20


def new_run_directory(asked: Path | None, name: str) -> Path:
    """Create an empty directory for one job, by default ``runs/NAME-YYYYMMDD-HHMMSS``."""
    folder = _unused(name) if asked is None else asked
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: choose another folder with -o, or remove it")
        _try_to_write(folder)
    except OSError as error:
        raise UsageError(_why_not(folder, error)) from error
    return folder.resolve()


def _unused(name: str) -> Path:
    """``runs/NAME-time``, with a number appended if two jobs start in the same second."""
    stem = f"{_safe(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 10_000):
        folder = DEFAULT_FOLDER / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not DEFAULT_FOLDER.is_dir():
                raise UsageError(
                    f"{DEFAULT_FOLDER} is a file here: choose a folder with -o"
                ) from None
        except OSError as error:
            raise UsageError(_why_not(folder, error)) from error
        else:
            return folder
    raise UsageError(f"{DEFAULT_FOLDER} has too many runs of this second: choose a folder with -o")


def _safe(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).stem)
    return kept.strip("-.")[:64] or "job"


def _try_to_write(folder: Path) -> None:
    """Find permission problems and a read-only or full file system before the job starts."""
    probe = folder / ".distprof-can-write"
    try:
        probe.write_bytes(b"x" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def _why_not(folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder} cannot be written, the disk is full: free disk space, or use -o"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{folder} is not a folder: choose another with -o"
    return f"{folder} cannot be written ({error.strerror}): choose another folder with -o"


def rank_directory(run_dir: Path, rank: int) -> Path:
    """Path of the directory of rank ``rank``; this does not create it."""
    return run_dir / RANK_DIR_FORMAT.format(rank=rank)


def write_run_file(run_dir: Path, run: RunFile, *, is_new: bool = False) -> None:
    """Replace run.json atomically, so that a reader never sees half of it.

    ``is_new``: a job begins here, and if two find the folder empty, only one may begin.
    """
    content = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
    file = run_dir / RUN_FILE
    temporary = run_dir / f".{RUN_FILE}.{os.getpid()}"
    try:
        temporary.write_bytes(content)
        if is_new:
            _claim(temporary, file)
        else:
            temporary.replace(file)
    except FileExistsError as error:
        raise UsageError(
            f"another job has begun in {run_dir}: choose another folder with -o"
        ) from error
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(
            str(file),
            expected="a folder with room for run.json",
            found=error.strerror or str(error),
            fix="free disk space, or choose another folder with -o",
        ) from error


def _claim(temporary: Path, file: Path) -> None:
    """Give a file its name; FileExistsError if the name is taken."""
    try:
        file.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: check, with a race that another job could win
        if file.exists():
            raise FileExistsError(file) from None
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def read_run_file(run_dir: Path) -> RunFile:
    """Read run.json; InputError if it is missing, broken or of another version."""
    file = run_dir / RUN_FILE
    try:
        if file.stat().st_size > _MAX_RUN_FILE_BYTES:
            raise InputError(str(file), expected="a description of a run", found="a huge file")
        content = file.read_bytes()
    except OSError as error:
        raise InputError(
            str(file), expected="the description of a run", found=error.strerror or str(error)
        ) from error
    try:
        run = msgspec.json.decode(content, type=RunFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            str(file), expected="JSON as this program writes it", found=str(error)
        ) from error
    if run.schema != RUN_SCHEMA:
        raise SchemaError(str(file), expected=RUN_SCHEMA, found=run.schema)
    return run
