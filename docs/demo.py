"""README's view of ``distprof demo``: the first lines in a terminal, and a picture of the page.

::

    python -m docs.demo --check    # exit code 1 if the picture is not of today's page
    python -m docs.demo --write    # take the picture again, with a headless Chromium

``docs.build`` writes the lines. The picture contains a fingerprint of the visible part of the page,
so that a change of the page is noticed without a browser.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from distprof.api import analyze, open_run
from distprof.config import Config
from distprof.demo import FOLDER
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from distprof.version import __version__
from docs.contents import DOCS

__all__ = [
    "PICTURE",
    "browser",
    "demo_page",
    "fingerprint",
    "main",
    "recorded",
    "with_demo",
    "with_fingerprint",
]

PICTURE = DOCS / "report.png"
MAX_BYTES = 300_000
"""README should open at once even on a slow connection."""

_SIZE = (1280, 785)
_LINES, _WIDTH = 10, 100
_BLOCK = re.compile(r"^(```\n\$ distprof demo\n).*?^(```)$", re.MULTILINE | re.DOTALL)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEY = b"fingerprint\0"


@cache
def demo_report() -> Report:
    """The demo's report, independent of the location of the repository."""
    report = analyze(open_run(FOLDER, use_cache=False, config=Config()), config=Config())
    return replace(report, run=replace(report.run, source=FOLDER.name))


def with_demo(readme: str) -> str:
    """README with the first lines of the demo's output in its block.

    Raises:
        ValueError: If README has no block that begins with ``$ distprof demo``.
    """
    text = find_reporter("text")(demo_report(), RenderOptions(width=_WIDTH))
    shown = "\n".join([*text.splitlines()[:_LINES], "…", ""])
    changed, number = _BLOCK.subn(lambda block: block[1] + shown + block[2], readme)
    if number != 1:
        raise ValueError("README must have one block that begins with $ distprof demo")
    return changed


def demo_page() -> str:
    """The demo's page."""
    return find_reporter("html")(demo_report(), RenderOptions())


def fingerprint(page: str) -> str:
    """A hash of the style and the first screen of a page, the same in every version of distprof."""
    first_screen = page[: page.index("</header>")].replace(__version__, "")
    return hashlib.sha256(first_screen.encode()).hexdigest()


def recorded(picture: bytes) -> str:
    """The fingerprint inside a picture; empty without one."""
    texts = (data for kind, data in _chunks(picture) if kind == b"tEXt")
    found = next((text for text in texts if text.startswith(_KEY)), _KEY)
    return found.removeprefix(_KEY).decode("latin-1")


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk of a PNG file."""
    place = len(_SIGNATURE)
    while place < len(picture):
        size, kind = struct.unpack_from(">I4s", picture, place)
        yield kind, picture[place + 8 : place + 8 + size]
        place += size + 12  # size, kind and checksum


def with_fingerprint(picture: bytes, value: str) -> bytes:
    """A PNG file with a fingerprint, in a text chunk before its last chunk, which is empty."""
    content = b"tEXt" + _KEY + value.encode("latin-1")
    size, checksum = struct.pack(">I", len(content) - 4), struct.pack(">I", zlib.crc32(content))
    return picture[:-12] + size + content + checksum + picture[-12:]


def browser() -> str:
    """A Chromium; empty without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), "")


def picture_of(page: str, program: str) -> bytes:
    """The first screen of a page as PNG, with its fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        file, shot = Path(folder, "page.html"), Path(folder, "page.png")
        file.write_text(page, encoding="utf-8")
        size = f"--window-size={_SIZE[0]},{_SIZE[1]}"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size)
        profile = f"--user-data-dir={folder}/profile"
        command = [program, *options, profile, f"--screenshot={shot}", file.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return with_fingerprint(shot.read_bytes(), fingerprint(page))


def main(arguments: Sequence[str]) -> int:
    """Check or take the picture; return the exit code."""
    if list(arguments) == ["--write"]:
        if not (program := browser()):
            sys.stderr.write("no Chromium: apt-get install chromium\n")
            return 1
        PICTURE.write_bytes(picture_of(demo_page(), program))
        return 0
    if list(arguments) != ["--check"]:
        sys.stderr.write("usage: python -m docs.demo --check | --write\n")
        return 2
    if PICTURE.is_file() and recorded(PICTURE.read_bytes()) == fingerprint(demo_page()):
        return 0
    sys.stderr.write(f"{PICTURE} is out of date: python -m docs.demo --write takes it again\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
