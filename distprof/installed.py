"""What installed packages declare: plug-ins and headers, without ``importlib.metadata``.

That module takes as long to import as a small trace takes to read, and then makes an object for
each entry point of each package. Here the folders of ``sys.path`` are listed, and only files that
name the group are parsed. Where packages may be installed otherwise (a zip file on ``sys.path``, a
finder of its own), ``importlib.metadata`` is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

__all__ = ["Plugin", "headers", "plugins"]

_FOLDERS = (".dist-info", ".egg-info")
_HEADERS = ("METADATA", "PKG-INFO")
_ENTRY_POINTS = "entry_points.txt"


class Plugin(NamedTuple):
    """An entry point of an installed package.

    Args:
        name: What it is called in its group.
        value: Where it is: ``module`` or ``module:attribute``.
        package: Name of the package that declares it; empty where that is not known.
    """

    name: str
    value: str
    package: str

    def load(self) -> object:
        """Import it.

        Raises:
            ImportError: If the module is missing; it may raise anything else, too.
            AttributeError: If the module has no attribute of that name.
        """
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: object = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


def plugins(group: str) -> tuple[Plugin, ...]:
    """The entry points of a group, in the order of ``sys.path``."""
    folders = _installed()
    if folders is None:
        return tuple(_asked(group))
    title = f"[{group}]"
    found: list[Plugin] = []
    for folder in folders.values():
        text = _text(folder, _ENTRY_POINTS)
        if title in text:
            package = next(iter(_headers_in(folder, "Name")), "")
            found += [Plugin(name, value, package) for name, value in _rows(text, title)]
    return tuple(found)


def _asked(group: str) -> Iterator[Plugin]:
    """The entry points that ``importlib.metadata`` knows; a broken package costs only its own."""
    from importlib.metadata import distributions

    seen: set[str] = set()
    for package in distributions():
        try:
            name = package.name
            points = tuple(package.entry_points)
        except Exception:  # whatever finders of others make of damaged files
            continue
        if name not in seen:
            seen.add(name)
            yield from (Plugin(p.name, p.value, name) for p in points if p.group == group)


def headers(package: str, name: str) -> tuple[str, ...]:
    """Values of a header of a package's metadata; empty where it is not installed."""
    folders = _installed()
    if folders is None:
        from importlib import metadata

        try:
            return tuple(str(value) for value in metadata.metadata(package).get_all(name) or ())
        except metadata.PackageNotFoundError:
            return ()
    return tuple(_headers_in(folders[package], name)) if package in folders else ()


def _installed() -> dict[str, str] | None:
    """Folder of each package's metadata; None where packages may be elsewhere, too.

    Of a package that is installed twice, it is the one that Python imports.
    """
    finders = (f for f in sys.meta_path if getattr(f, "__name__", "") != "PathFinder")
    if any(hasattr(finder, "find_distributions") for finder in finders):
        return None
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            with os.scandir(place or ".") as entries:
                for entry in entries:
                    if entry.name.endswith(_FOLDERS):
                        found.setdefault(_package_of(entry.name), entry.path)
        except NotADirectoryError:  # a zip file
            return None
        except OSError:
            continue
    return found


def _package_of(folder: str) -> str:
    """The package, spelled alike whoever installed it, from the name of its folder."""
    return folder.rpartition(".")[0].partition("-")[0].lower().replace(".", "_")


def _rows(text: str, title: str) -> Iterator[tuple[str, str]]:
    """Names and values below a title."""
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == title
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _headers_in(folder: str, name: str) -> Iterator[str]:
    """Values of a header; headers end at the first empty line."""
    text = next(filter(None, (_text(folder, file) for file in _HEADERS)), "")
    for line in text.partition("\n\n")[0].splitlines():
        header, _, value = line.partition(": ")
        if header == name:
            yield value


def _text(folder: str, name: str) -> str:
    try:  # pathlib takes longer to import than all of this takes
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
