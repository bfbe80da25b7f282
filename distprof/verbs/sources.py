"""Checks the user's source before any work starts: whether it exists and can be a trace."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Sequence
from itertools import islice
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distprof.errors import InputError, UsageError

if TYPE_CHECKING:
    from distprof.artefacts.summary_file import SummaryFile

MAX_STDIN_BYTES = 1 << 36
_MAX_ENTRIES = 10_000


def single_source(sources: tuple[str, ...]) -> str:
    """The only source; of several files, the pattern that the shell has probably expanded."""
    if len({*sources}) == 1:
        return sources[0]
    if pattern := _pattern_of(sources):
        return pattern
    folders = {str(Path(source).parent) for source in sources}
    folder = folders.pop() if len(folders) == 1 else "FOLDER"
    raise UsageError(
        f"{len(sources)} sources that no pattern names without others, but distprof analyses one "
        f"run at a time: put them into a folder of their own (now {folder}), and name it"
    )


def _pattern_of(sources: tuple[str, ...]) -> str:
    """A pattern of these files and no others; empty if neither form of it is one."""
    start, end = _common(sources), _common([name[::-1] for name in sources])[::-1]
    end = end[max(len(start) + len(end) - min(map(len, sources)), 0) :]
    parts = {name[len(start) : len(name) - len(end)] for name in sources}
    tried = ("*", f"[{''.join(sorted(parts))}]" if {*map(len, parts)} == {1} else "*")
    patterns = (f"{glob.escape(start)}{any_of}{glob.escape(end)}" for any_of in tried)
    return next((one for one in patterns if {*glob.glob(one)} == {*sources}), "")  # noqa: PTH207


def _common(names: Sequence[str]) -> str:
    return commonprefix(names)  # noqa: RUF071 - letters, not folders


def spooled(source: str) -> str:
    """The source; for ``-``, a file with what comes from standard input."""
    if source != "-":
        return source
    import sys

    from distprof.artefacts.files import scratch_folder

    path = scratch_folder("stdin") / "stdin.log"
    num_bytes = 0
    with path.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            num_bytes += len(block)
            if num_bytes > MAX_STDIN_BYTES:
                raise InputError(
                    "-",
                    expected=f"at most {MAX_STDIN_BYTES:,} bytes on standard input",
                    found="more",
                    fix="write the output to a file and name it",
                )
            file.write(block)
    return str(path)


def check_source(source: str) -> None:
    """Reject a local path that does not exist, is not a file or folder, or is a saved report."""
    _check_path(source, expected="a trace, a folder or glob of traces, or a run directory")
    from distprof.ingest.recognise import Kind, kind_of

    if kind_of(source) is Kind.REPORT:
        raise InputError(
            source,
            expected="a trace",
            found="a report that distprof saved",
            fix=f"distprof report {source}",
        )


def check_comparable(source: str) -> None:
    """Like :func:`check_source`, but accept a saved report."""
    _check_path(source, expected="a run directory, a saved report, or traces")


def summaries_of(sources: Sequence[str]) -> tuple[SummaryFile, ...]:
    """Summaries of the user's sources; all names are checked before any work starts."""
    from distprof.verbs.summaries import load_summaries

    for source in sources:
        check_comparable(source)
    return load_summaries(sources)


def _check_path(source: str, *, expected: str) -> None:
    if "://" in source or any(character in source for character in "*?["):
        return
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # the name is too long or contains a null character
        exists = False
    if exists:
        if not (path.is_file() or path.is_dir()):
            raise InputError(
                source,
                expected="a file or a folder",
                found="a pipe or a device",
                fix="write the trace to a file first: distprof reads it more than once",
            )
        return
    raise InputError(
        source,
        expected=expected,
        found="no file or folder with that name",
        fix=_near_names(path) or "check the path; a URL needs its scheme, such as s3://",
    )


def _near_names(path: Path) -> str:
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MAX_ENTRIES)]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    return " or ".join(str(path.parent / name) for name in near)


_MOST_PORT = 65_535


def is_web_address(text: str) -> bool:
    """Whether a text is a complete ``http`` or ``https`` URL."""
    try:
        parts = urlsplit(text)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        return False
    return is_fine and text.isprintable() and " " not in text


def listen_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``PORT`` into host and port; the host defaults to loopback."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isdecimal() and port.isascii() and len(port) <= 5 and int(port) <= _MOST_PORT):
        raise UsageError(f"{text!r} is not an address such as 127.0.0.1:9464")
    return host, int(port)


def cannot_listen(
    host: str, port: int, error: Exception, *, fix: str = "choose another port with --listen"
) -> InputError:
    """The error for an address that the operating system refuses."""
    return InputError(
        f"{host}:{port}",
        expected="a free address of this machine",
        found=getattr(error, "strerror", None) or str(error),
        fix=fix,
    )
