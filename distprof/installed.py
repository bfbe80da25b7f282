"""What the metadata of installed packages says, and the site of distprof's documentation.

``importlib.metadata`` takes as long to import as a small trace to read. This module lists the
folders of ``sys.path`` and parses only the package that is asked for. If packages may be installed
in another way (a zip file on ``sys.path``, a custom finder), it falls back to
``importlib.metadata``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from distprof.version import __version__

_FOLDERS = (".dist-info", ".egg-info")
_HEADERS = ("METADATA", "PKG-INFO")
_OF_PATH = ("PathFinder", "MetadataPathFinder")
"""Finders of packages in ``sys.path``: Python's own, and that of a backport, which Dask imports."""


def headers(package: str, name: str) -> tuple[str, ...]:
    """Values of a header in the metadata of a package; empty if it is not installed."""
    folders = _installed()
    if folders is None:
        from importlib import metadata

        try:
            return tuple(str(value) for value in metadata.metadata(package).get_all(name) or ())
        except (metadata.PackageNotFoundError, OSError):  # not there, or without metadata
            return ()
    return tuple(_headers_in(folders[package], name)) if package in folders else ()


def _installed() -> dict[str, str] | None:
    """Metadata folder of each package; None if packages may also be elsewhere.

    If a package is installed twice, this is the one that Python imports.
    """
    finders = (f for f in sys.meta_path if hasattr(f, "find_distributions"))
    if any(getattr(f, "__name__", type(f).__name__) not in _OF_PATH for f in finders):
        return None
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            with os.scandir(place or ".") as entries:
                for entry in entries:
                    if entry.name.endswith(_FOLDERS):
                        package = entry.name.rpartition(".")[0].partition("-")[0]
                        found.setdefault(package.lower().replace(".", "_"), entry.path)
        except NotADirectoryError:  # a zip file
            return None
        except OSError:
            continue
    return found


def _headers_in(folder: str, name: str) -> Iterator[str]:
    """Values of a header. Headers end at the first empty line."""
    text = next(filter(None, (_text(folder, file) for file in _HEADERS)), "")
    for line in text.partition("\n\n")[0].splitlines():
        header, _, value = line.partition(": ")
        if header == name:
            yield value


def _text(folder: str, name: str) -> str:
    try:  # importing pathlib would take longer than all of this
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


_ADDRESS = re.compile(r"https?://[\w.:@-]+(/[\w.~%+@:-]*)*(#[\w.~%-]*)?", re.ASCII)


def is_web_address(text: str) -> bool:
    """Whether ``text`` is an ``http(s)`` address that needs no escaping in any document."""
    return _ADDRESS.fullmatch(text) is not None


def published_site() -> str:
    """The site in the metadata of the installed package; empty without one."""
    urls = (url.partition(", ") for url in headers("distprof", "Project-URL"))
    return next((address for name, _, address in urls if name == "Documentation"), "")


def page_url(page: str, site: str) -> str:
    """The address of a page (its source's path in the documentation); empty without a site."""
    if not site:
        return ""
    return f"{site.rstrip('/')}/{__version__}/{page.removesuffix('.md')}.html"
