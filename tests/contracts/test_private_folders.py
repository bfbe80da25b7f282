"""Nothing is made or loaded under a name that another user can guess in a shared folder.

``tempfile`` makes folders and files of mode 0700 and 0600 with random names. A known name needs
``private_folder``, which checks the owner and the mode.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("distprof", "probes", "reference_runs", "tests", "benchmarks", "docs")
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
MAY_NAME_IT = {
    "benchmarks/fuzz.py": "the parent of folders with random names",
    "benchmarks/interruptions.py": "the parent of a folder with a random name",
    "distprof/ingest/cache.py": "asks whether a file is in it",
    "distprof/remote/download.py": "names it in an error",
    "probes/distprof_probes/attach/sockets.py": "folders with random names; a lock without content",
}


def naming(source: str) -> Iterator[int]:
    """Lines that name a shared folder: ``gettempdir``, or a path that is joined to a name."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "gettempdir":
            yield node.lineno
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Path" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith(SHARED):
                yield node.lineno


def files() -> Iterator[Path]:
    yield from (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    yield from ROOT.glob("*.py")


def test_only_known_places_name_a_shared_folder() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files()
        if any(naming(path.read_text("utf-8")))
    }
    assert found <= MAY_NAME_IT.keys()
    assert MAY_NAME_IT.keys() - found <= {"benchmarks/interruptions.py"}


@pytest.mark.parametrize(
    "line", ["import tempfile; tempfile.gettempdir()", "Path('/tmp/known').mkdir()"]
)
def test_a_known_name_in_a_shared_folder_is_seen(line: str) -> None:
    assert list(naming(line)) == [1]
