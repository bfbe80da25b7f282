"""One kind of result: its text, Markdown, JSON and loading, implemented once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from distprof.artefacts.files import write_atomically
from distprof.bounds import Bound, NotAFileError, TooLargeError, decode_json, read_plain
from distprof.documents.page import Page
from distprof.errors import InputError, SchemaError, UsageError, explaining
from distprof.escape import each_text
from distprof.formats import RenderOptions
from distprof.terms import CI_FORMATS

if TYPE_CHECKING:
    from distprof.documents.ci import Cases

T = TypeVar("T", bound=msgspec.Struct)
Reporting: TypeAlias = Callable[[T, RenderOptions], str]
"""A function that writes a result in one format."""
LARGE = 10_000_000
"""Bytes of JSON above which a document is written without line breaks."""
_UNSEEN = re.compile(
    "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class _Header(msgspec.Struct):
    """Fields that identify a document before the others are decoded."""

    schema: str = ""
    distprof_version: str = ""


class Document(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One kind of result."""

    kind: type[T]  # The struct that is written; its field ``schema`` identifies the document.
    noun: str  # For messages, for example ``a plan``.
    file: str = ""  # For messages, the description of its file; by default ``a saved plan``.
    fix: str = ""  # For messages, the fix for a damaged file or one of another version.
    fix_missing: str = ""  # The fix for a missing file; by default as ``fix``.
    fix_foreign: str = ""  # The fix for JSON without a schema; by default as ``fix``.
    # Makes the page that people see; None for files that only programs read.
    page: Callable[[T, RenderOptions], Page] | None = None
    # Makes versions of the page for a terminal, longest first; by default there is one.
    terminal_pages: Callable[[T, RenderOptions], Iterable[Page]] | None = None
    # Makes the cases that CI services show; None for results that judge nothing.
    cases: Callable[[T, RenderOptions], Cases] | None = None
    # Further formats, or replacements of the page's ``text`` and ``md``.
    formats: Mapping[str, Reporting[T]] = msgspec.field(default_factory=dict)
    # Spaces of indentation in JSON of up to :data:`LARGE` bytes; larger JSON is one line.
    indent: int = 2
    # ``sorted`` for keys in alphabetical order, so that diffs stay readable; None for the order of
    # the struct.
    order: Literal["sorted"] | None = None
    max_bytes: int = 1 << 30  # Larger files are refused.

    @property
    def schema(self) -> str:
        """Value of the field ``schema`` of what is written, for example ``distprof.plan/1``."""
        fields = msgspec.structs.fields(self.kind)
        return str(next(field.default for field in fields if field.name == "schema"))

    @property
    def bound(self) -> Bound:
        """The limits on reading a file of this kind."""
        return Bound(
            reads=self.file or f"a saved {self.noun.partition(' ')[2]}",
            num_bytes=self.max_bytes,
            depth=1_000,
        )

    @property
    def name(self) -> str:
        """The name in the schema, for example ``plan-lint`` in ``distprof.plan-lint/1``."""
        return self.schema.partition(".")[2].partition("/")[0]

    @property
    def reporters(self) -> dict[str, Reporting[T]]:
        """Name of a format to the function that writes it."""
        found: dict[str, Reporting[T]] = {"json": lambda result, _: self.encode(result).decode()}
        if self.page is not None:
            found = {
                "text": partial(_text, self),
                "brief": partial(_brief, self),
                **found,
                "md": partial(_markdown, self),
                "html": partial(_html, self),
            }
        if self.cases is not None:
            found |= {name: partial(_for_service, self.cases, name) for name in CI_FORMATS}
        return {**found, **self.formats}

    def reporter(self, name: str) -> Reporting[T]:
        """The function that writes a result in a format; UsageError if it is unknown."""
        found = self.reporters
        if name not in found:
            raise UsageError(f"no format {name!r} for {self.noun}: choose from {', '.join(found)}")
        return found[name]

    def page_of(self, result: T, options: RenderOptions) -> Page:
        """The page of a result that people read."""
        assert self.page is not None  # files that only programs read have no format that asks
        return self.page(result, options)

    def encode(self, result: T) -> bytes:
        r"""The result as JSON, with a newline at the end.

        Characters that a terminal would interpret or hide are written as ``\uXXXX``.
        """
        try:
            data = msgspec.json.encode(result, order=self.order)
        except UnicodeEncodeError:  # half a surrogate pair: a file name that is not UTF-8
            builtins = each_text(
                msgspec.to_builtins(result),
                lambda text: text.encode("utf-8", "backslashreplace").decode(),
            )
            data = msgspec.json.encode(builtins, order=self.order)
        if len(data) <= LARGE:
            data = msgspec.json.format(data, indent=self.indent)
        text = data.decode()
        return _UNSEEN.sub(_escaped, text).encode() + b"\n"

    def decode(self, data: bytes, source: str) -> T:
        """The result that ``data`` holds; SchemaError for another document, version or fields."""
        header = self._header(data, source)
        try:
            return decode_json(data, self.kind)
        except (msgspec.ValidationError, RecursionError, ValueError) as error:
            raise SchemaError(
                source,
                expected=f"{self._expected} and the fields of its JSON Schema",
                found=f"{error} (written by distprof {header.distprof_version or 'unknown'})",
                fix=self.fix,
            ) from error

    def load(self, path: str | os.PathLike[str]) -> T:
        """Read a file; InputError if it cannot be read, SchemaError as :meth:`decode`."""
        return self.decode(self._read(Path(path)), str(path))

    def save(self, result: T, path: str | os.PathLike[str]) -> Path:
        """Write the result as JSON, replacing an existing file; InputError if that fails."""
        return write_file(Path(path), self.encode(result))

    @property
    def _expected(self) -> str:
        return f'{self.noun} with "schema": "{self.schema}"'

    def _read(self, file: Path) -> bytes:
        try:
            return read_plain(file, self.max_bytes)
        except (OSError, ValueError) as error:
            found = getattr(error, "strerror", None) or str(error)
            fix = self.fix_missing or self.fix
            if isinstance(error, TooLargeError):
                found, fix = f"more than {self.max_bytes >> 20} MiB", self.fix
            elif isinstance(error, NotAFileError):
                fix = "write it to a file first"
            expected = self.bound.reads
            raise InputError(str(file), expected=expected, found=found, fix=fix) from error

    def _header(self, data: bytes, source: str) -> _Header:
        fix = self.fix
        try:
            header = msgspec.json.decode(data, type=_Header)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            found = f"damaged or unrelated JSON ({error})" if data.strip() else "an empty file"
            raise SchemaError(source, expected=self._expected, found=found, fix=fix) from error
        if header.schema == self.schema:
            return header
        found = f'"schema": "{header.schema[:60]}"'
        if not header.schema:
            found, fix = 'JSON without "schema"', self.fix_foreign or fix
        raise SchemaError(source, expected=self._expected, found=found, fix=fix)


def document_of(kind: type[Any]) -> Document[Any]:
    """The document for one kind of result, declared in the ``show.py`` of its package."""
    module = import_module(".show", sys.modules[kind.__module__].__package__)
    for value in vars(module).values():
        if isinstance(value, Document) and value.kind is kind:
            return value
    raise LookupError(f"no document holds a {kind.__name__}")


def write_file(path: Path, data: bytes) -> Path:
    """Write a file atomically and return its path; InputError if that fails."""
    with explaining(path, "a location where a file can be written", "choose another file with -o"):
        write_atomically(path, data)
    return path


def _for_service(
    cases: Callable[[Any, RenderOptions], Cases], name: str, result: Any, options: RenderOptions
) -> str:
    from distprof.documents.ci import SERVICES

    return SERVICES[name](cases(result, options))


def _text(document: Document[T], result: T, options: RenderOptions) -> str:
    from distprof.documents.text import fitting_text

    if document.terminal_pages is None:
        return fitting_text([document.page_of(result, options)], options)
    return fitting_text(document.terminal_pages(result, options), options)


def _brief(document: Document[T], result: T, options: RenderOptions) -> str:
    from distprof.documents.brief import page_brief

    return page_brief(document.page_of(result, options))


def _markdown(document: Document[T], result: T, options: RenderOptions) -> str:
    from distprof.documents.markdown import page_markdown

    return page_markdown(document.page_of(result, options), options)


def _html(document: Document[T], result: T, options: RenderOptions) -> str:
    from distprof.documents.html.page import figures_of, page_html

    return page_html(document.page_of(result, options), figures_of(result))


def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
