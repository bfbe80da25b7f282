"""Reports on disk: written whole or not at all, read with every field checked."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA
from distprof.errors import InputError, SchemaError
from distprof.formats import RenderOptions
from distprof.sections.report import Report

__all__ = [
    "decode_report",
    "encode_report",
    "load_report",
    "render",
    "save_report",
    "write_atomically",
]

_EXPECTED = f'a report with "schema": "{REPORT_SCHEMA}"'

_RENDER_AGAIN = "make it again with: distprof analyze SOURCE --save-report FILE"

_MAX_BYTES = 1 << 30

_UNSEEN = re.compile(
    "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class _Header(msgspec.Struct):
    """What tells a report from other JSON, before its fields are looked at."""

    schema: str = ""
    distprof_version: str = ""


def encode_report(report: Report) -> bytes:
    r"""The report as JSON: fields in the order of their definition, a newline at the end.

    Characters that a terminal would obey or hide are written as ``\uXXXX``.
    """
    try:
        data = msgspec.json.encode(report)
    except UnicodeEncodeError:  # half a surrogate pair: a file name that is not UTF-8
        data = msgspec.json.encode(_well_formed(msgspec.to_builtins(report)))
    text = msgspec.json.format(data, indent=1).decode()
    return _UNSEEN.sub(_spelled_out, text).encode() + b"\n"


def decode_report(data: bytes, source: str) -> Report:
    """The report that ``data`` holds.

    Args:
        data: JSON as :func:`encode_report` writes it.
        source: Where it came from, for the error message.

    Raises:
        SchemaError: If it is no report, one of another version, or has other fields.
    """
    header = _decode_header(data, source)
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        raise SchemaError(
            source,
            expected=f"{_EXPECTED} and the fields of its JSON Schema",
            found=f"{error} (written by distprof {header.distprof_version or 'unknown'})",
            fix=_RENDER_AGAIN,
        ) from error


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a saved report.

    Args:
        path: A ``report.json``, or a run directory that holds one.

    Raises:
        InputError: If the file cannot be read.
        SchemaError: If it is not a report of the version that this program reads.
    """
    file = Path(path)
    if file.is_dir():
        file = file / REPORT_FILE
    return decode_report(_read(file), str(file))


def save_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as JSON, replacing what is there; returns the path.

    Raises:
        InputError: If the file cannot be written.
    """
    return write_atomically(Path(path), encode_report(report))


def write_atomically(path: Path, data: bytes) -> Path:
    """Write a file under a temporary name and rename it; returns the path.

    Raises:
        InputError: If the folder cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe, such as /dev/stdout, has no replacement
        else:
            _replace(path, data)
    except OSError as error:
        raise InputError(
            str(path),
            expected="a place where a file can be written",
            found=error.strerror or str(error),
            fix="choose another file with -o",
        ) from error
    return path


def _replace(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o666 & ~_umask())  # mkstemp makes private files
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _read(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(
                str(file), expected="a saved report", found=f"{size:,} bytes", fix=_RENDER_AGAIN
            )
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(
            str(file),
            expected="a saved report",
            found=getattr(error, "strerror", None) or str(error),
            fix=_RENDER_AGAIN,
        ) from error


def _decode_header(data: bytes, source: str) -> _Header:
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        found = f"damaged or other JSON ({error})" if data.strip() else "an empty file"
        raise SchemaError(source, expected=_EXPECTED, found=found, fix=_RENDER_AGAIN) from error
    if header.schema != REPORT_SCHEMA:
        found = f'"schema": "{header.schema}"' if header.schema else 'JSON without "schema"'
        fix = "give a trace to distprof analyze" if not header.schema else _RENDER_AGAIN
        raise SchemaError(source, expected=_EXPECTED, found=found, fix=fix)
    return header


def _spelled_out(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _well_formed(value: Any) -> Any:
    """The same with halves of surrogate pairs spelled out, in every string inside."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list | tuple) else value


# The report as JSON, the form that other programs read -------------------------------------------


def render(report: Report, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    """The report as ``report.json`` holds it, a newline at the end."""
    return encode_report(report).decode()
