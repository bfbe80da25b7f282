"""Each reader states what it takes at most, keeps to it, and opens files in one place."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

import distprof
from distprof.bounds import Bound, NotAFileError, open_plain, read_plain
from distprof.errors import DistprofError
from distprof.ingest import files, sensors
from distprof.ingest.kinds import known_sources
from docs.bounds import all_bounds
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_kinds import SAMPLES

ROOT = Path(distprof.__file__).parent
OPENS = {"read_bytes", "read_text"}
MAY_OPEN = {
    "bounds.py": "is what opens files",
    "artefacts/files.py": "writes",
    "rules/base.py": "a file that is shipped",
    "documents/document.py": "a file that is shipped",
    "documents/html/page.py": "files that are shipped: style and script",
    "verbs/op/__init__.py": "a file that is shipped",
    "ingest/output/expressions.py": "a file that is shipped",
    "installed.py": "metadata of packages that are installed",
    "cli/doctor.py": "the version file of a package that is installed",
    "cli/check.py": "appends to the file that GitHub names",
    "ingest/kineto/reader.py": "reads a trace by the window",
    "ingest/cache.py": "entries, after they are found to be plain files of a known size",
    "ingest/executor.py": "names of this process's own threads, which Linux keeps short",
    "ingest/job/__init__.py": "a line that the kernel writes of a process",
    "ingest/rank.py": "an entry of the cache, after it was checked",
    "verbs/export/__init__.py": "the file that the command has just written",
}
"""Modules that open files otherwise, and why they may."""


def opening_calls(tree):
    """Calls that open a path or read all of a file, by line."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name))):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        first = node.args[0] if node.args else None
        is_mode = isinstance(first, ast.Constant) and first.value in ("r", "rb")
        is_all = name == "read" and not node.args and not node.keywords
        if name in OPENS or (name == "open" and is_mode) or is_all:
            yield node.lineno, name


def test_an_open_file_is_seen():
    code = "p.open('rb')\np.read_bytes()\ns.read()\nopen_plain(p)\ns.read(10)\n"
    assert [line for line, _ in opening_calls(ast.parse(code))] == [1, 2, 3]


def test_files_are_opened_where_a_bound_is_kept():
    """A new reader uses ``open_plain`` or ``read_plain``, or says here why it need not."""
    found = {
        f"{name}:{line} {call}"
        for path in ROOT.rglob("*.py")
        if (name := str(path.relative_to(ROOT))) not in MAY_OPEN
        for line, call in opening_calls(ast.parse(path.read_text("utf-8")))
    }
    assert found == set()


def test_every_reader_is_listed_once():
    bounds = all_bounds()
    assert {source.bound for source in known_sources()} <= {*bounds}
    assert {document.bound for document in ALL_DOCUMENTS} <= {*bounds}
    assert len({bound.reads for bound in bounds}) == len(bounds)
    for bound in bounds:
        assert isinstance(bound, Bound)
        assert bound.num_bytes > 0
        assert bound.reads[0].islower() or bound.reads.startswith(("GPU", "Kineto"))


def answer_of(source):
    """What a kind says of its sample, and whether it refuses it."""
    try:
        return "\n".join(source.read(SAMPLES[source.origin]).notes), False
    except DistprofError as error:
        return str(error), True


@pytest.mark.parametrize("source", known_sources(), ids=lambda source: source.origin)
def test_a_kind_keeps_to_its_size(source, monkeypatch):
    """More is refused, or what is left out is said."""
    module = import_module(source.read.__module__)
    name = next(name for name, value in vars(module).items() if value is source.bound)
    monkeypatch.setattr(module, name, replace(source.bound, num_bytes=100))
    for where in (files, sensors):
        monkeypatch.setattr(where, "MAX_BYTES", 100)
        monkeypatch.setattr(where, "BLOCK_BYTES" if where is not sensors else "_BLOCK_BYTES", 64)
    said, is_refused = answer_of(source)
    assert "100 bytes" in said or "read only up to" in said
    assert "try: " in said if is_refused else source.bound.beyond == "skipped"


@pytest.mark.parametrize("document", ALL_DOCUMENTS, ids=lambda document: document.schema)
def test_a_document_keeps_to_its_size(document, tmp_path):
    (tmp_path / "large.json").write_bytes(b" " * (3 << 20))
    with pytest.raises(DistprofError, match="more than 2 MiB"):
        replace(document, max_bytes=2 << 20).load(tmp_path / "large.json")


def test_a_file_that_grows_is_read_up_to_the_size_it_had(tmp_path):
    file = tmp_path / "growing"
    file.write_bytes(b"a" * 1_000)
    with open_plain(file) as stream, file.open("ab") as writer:
        seen = 0
        for _ in range(10_000):
            block = stream.read(100)
            if not block:
                break
            seen += len(block)
            writer.write(b"b" * 200)
            writer.flush()
    assert seen == 1_000
    assert read_plain(file, 10_000_000) == file.read_bytes()


def test_a_file_that_shrinks_ends_early(tmp_path):
    file = tmp_path / "shrinking"
    file.write_bytes(b"a" * 100_000)
    with open_plain(file) as stream:
        first = stream.read(10)
        with file.open("r+b") as writer:
            writer.truncate(50)
        assert len(first + stream.read()) < 100_000


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/null"])
def test_a_device_is_not_read(path):
    with pytest.raises(NotAFileError, match="a pipe or a device"):
        open_plain(path)
    with pytest.raises(NotAFileError, match="a pipe or a device"):
        read_plain(path, 100)
