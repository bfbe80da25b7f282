"""All errors that a caller may see.

::

    DistprofError            exit code 3
    ├── UsageError           exit code 2: an option or a combination of options is wrong
    │   └── MissingExtraError    an optional dependency is missing; the message names the extra
    └── InputError           exit code 3: a file or folder is bad or insufficient
        ├── StatementError   text of another tool that shows something
        ├── OtherVerbError   files of another verb were named instead of a recording
        └── SchemaError      a saved file has a schema or version that this program cannot read

The command line catches :class:`DistprofError` in one place, prints its message and exits with its
code. ``ValueError`` is for wrong use of the Python API, ``assert`` only for internal invariants.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


class DistprofError(Exception):
    """Base class of all errors that a user can act on."""

    exit_code = 3


class UsageError(DistprofError):
    """An option, an argument or a combination of them is wrong."""

    exit_code = 2


class MissingExtraError(UsageError):
    """An optional dependency is not installed.

    Args:
        feature: The requested feature, as the start of a sentence.
        extra: The name of the extra that provides it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'distprof[{extra}]'")
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: the default would pass the message as the only argument."""
        return type(self), (self.feature, self.extra)


class InputError(DistprofError):
    """A file or folder cannot be used.

    Args:
        source: The file, folder or URL, as the user named it.
        expected: What was expected.
        found: What was found instead.
        fix: How the user can fix it.
    """

    def __init__(self, source: str, *, expected: str, found: str, fix: str = "") -> None:
        self.source = source
        self.expected = expected
        self.found = found
        self.fix = fix
        advice = f"\n  try: {fix}" if fix else ""
        super().__init__(f"{source}:\n  expected: {expected}\n  found: {found}{advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: keyword-only arguments need an explicit constructor."""
        made = partial(type(self), expected=self.expected, found=self.found, fix=self.fix)
        return made, (self.source,)


@contextmanager
def explaining(source: object, expected: str, fix: str = "") -> Iterator[None]:
    """InputError, with the words of the operating system, for an OSError inside."""
    try:
        yield
    except OSError as error:
        found = error.strerror or str(error)
        raise InputError(str(source), expected=expected, found=found, fix=fix) from error


class OtherVerbError(InputError):
    """Files of another verb were named where a recording is expected; the fix is its command."""


class StatementError(InputError):
    """Text that is nothing to analyse, but shows something: that is said first."""

    def __str__(self) -> str:
        return f"{self.found[:1].upper()}{self.found[1:]}.\n  try: {self.fix}"


class SchemaError(InputError):
    """A saved file has a schema or schema version that this program cannot read."""


def in_words(error: BaseException) -> DistprofError:
    """An error that cannot be unpickled in another process, as its type and message."""
    return DistprofError(f"{type(error).__name__}: {error}")


class RemoteError(OSError):
    """A file elsewhere cannot be used: why, and how the user can fix it."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(errno.EIO, why)
        self.fix = fix

    def __str__(self) -> str:
        """The reason alone: the caller names the file."""
        return self.strerror or ""

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: the default of ``OSError`` would pass its error number."""
        return type(self), (self.strerror, self.fix)


class WebError(RemoteError):
    """A server cannot be used."""
