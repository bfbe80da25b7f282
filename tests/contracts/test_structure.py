"""The house itself: imports without circles, folders that can be read at a glance."""

from collections import Counter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "distprof": ROOT / "distprof",
    "distprof_probes": ROOT / "probes" / "distprof_probes",
    "distprof_runs": ROOT / "reference_runs" / "distprof_runs",
}
MOST_MODULES_IN_A_FOLDER = 20


def circles(graph):
    """Sets of modules that import one another, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            members = set()
            while module not in members:
                members.add(stack.pop())
            if len(members) > 1:
                found.append(sorted(members))

    for module in sorted(graph.modules):
        if module not in index:
            visit(module)
    return found


def test_a_circle_is_seen():
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["a", "b", "c"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_part_of_an_import_circle(package):
    """Imports inside functions count too; those for type checkers alone do not."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    assert circles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_holds_more_modules_than_fit_on_a_screen(package):
    per_folder = Counter(path.parent for path in PACKAGES[package].rglob("*.py"))
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder, count in per_folder.items()
        if count > MOST_MODULES_IN_A_FOLDER
    }
    assert crowded == {}


MOST_LINES, MOST_FILES = 110_115, 416
"""Ceiling of the package. It falls: whoever needs more finds what may go. It rose once, by 0.5 %,
when the logs of all ranks and runs of a job, and the tables of its ranks, came to be read together.
"""


def test_the_package_does_not_grow():
    files = list((ROOT / "distprof").rglob("*.py"))
    assert len(files) <= MOST_FILES
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES
