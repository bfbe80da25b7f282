"""Plug-ins and headers are those that ``importlib.metadata`` finds."""

import sys
import zipfile
from importlib import metadata

import pytest

from distprof import installed
from distprof.installed import headers, plugins

GROUPS = sorted(
    {point.group for package in metadata.distributions() for point in package.entry_points}
)
POINTS = """
[acme.tools]
first = acme.first:make
  second=acme.second : Maker.make [fast]
# third = acme.third

[acme.others]
first = acme.others
"""


def write_package(place, folder, points="", meta="Name: acme-tools\n"):
    made = place / folder
    made.mkdir(parents=True)
    (made / "METADATA").write_text(meta)
    (made / "entry_points.txt").write_text(points)


@pytest.fixture
def only(monkeypatch, tmp_path):
    """A ``sys.path`` of two folders of this test and nothing else."""
    places = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setattr(sys, "path", [*map(str, places), str(tmp_path / "missing")])
    return places


def by_name(rows):
    return sorted(rows)


@pytest.mark.parametrize("group", [*GROUPS, "distprof.rules", "no.such.group"])
def test_the_groups_of_this_environment_are_the_same(group):
    known = [(p.name, p.value, p.dist.name) for p in metadata.entry_points(group=group)]
    assert by_name(map(tuple, plugins(group))) == by_name(known)


@pytest.mark.parametrize("package", ["distprof", "numpy", "click", "no_such_package"])
def test_the_headers_of_this_environment_are_the_same(package):
    for name in ("Name", "Version", "Project-URL", "Requires-Dist", "Keywords-Nobody-Has"):
        try:
            known = metadata.metadata(package).get_all(name) or []
        except metadata.PackageNotFoundError:
            known = []
        assert list(headers(package, name)) == known


def test_entry_points_are_parsed(only):
    write_package(only[0], "acme_tools-1.0.dist-info", POINTS)
    found = plugins("acme.tools")
    known = metadata.entry_points(group="acme.tools")
    assert [p.name for p in found] == ["first", "second"] == [p.name for p in known]
    assert {p.package for p in found} == {"acme-tools"}
    assert [p.name for p in plugins("acme.others")] == ["first"]
    assert plugins("acme") == ()


def test_the_package_that_comes_first_hides_the_other(only):
    write_package(only[0], "acme_tools-2.0.dist-info", "[acme]\nnew = acme:new\n")
    write_package(only[1], "Acme.Tools-1.0.dist-info", "[acme]\nold = acme:old\n")
    assert [p.name for p in plugins("acme")] == ["new"]
    assert [p.name for p in metadata.entry_points(group="acme")] == ["new"]


def test_an_old_fashioned_package_is_found(only):
    write_package(only[0], "acme_tools.egg-info", "[acme]\nold = acme:old\n")
    assert [p.value for p in plugins("acme")] == ["acme:old"]


def test_a_package_in_a_zip_file_is_found(monkeypatch, only, tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("acme_tools-1.0.dist-info/METADATA", "Name: acme-tools\nKeywords: zip\n")
        file.writestr("acme_tools-1.0.dist-info/entry_points.txt", POINTS)
    monkeypatch.setattr(sys, "path", [str(packed)])
    assert [p.name for p in plugins("acme.tools")] == ["first", "second"]
    assert headers("acme_tools", "Keywords") == ("zip",)
    assert headers("other", "Keywords") == ()


def test_a_finder_of_another_kind_is_asked(monkeypatch, only):
    class Finder:
        @staticmethod
        def find_distributions(context):
            write = metadata.PathDistribution(only[0] / "acme-1.0.dist-info")
            return [write]

        @staticmethod
        def find_spec(*_):
            return None

    write_package(only[0], "acme-1.0.dist-info", "[acme]\nhidden = acme:hidden\n")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [p.name for p in plugins("acme")] == ["hidden"]


@pytest.mark.parametrize("by", ["itself", "importlib.metadata"])
def test_a_broken_package_costs_nothing_else(only, by, monkeypatch):
    if by != "itself":  # as with packages that bring a finder of their own
        monkeypatch.setattr(installed, "_installed", lambda: None)
    only[0].mkdir()
    (only[0] / "broken-1.0.dist-info").write_text("a file, not a folder")
    (only[0] / "empty-1.0.dist-info").mkdir()
    (only[0] / "odd-1.0.dist-info").mkdir()
    (only[0] / "odd-1.0.dist-info" / "entry_points.txt").write_bytes(b"[acme]\n\xff = \xfe\n")
    write_package(only[0], "good-1.0.dist-info", "[acme]\ngood = acme:good\n")
    assert "good" in [p.name for p in plugins("acme")]


def test_a_plugin_is_loaded_as_a_module_or_an_attribute():
    load = installed.Plugin("x", "os.path:join", "").load
    assert load() is __import__("os").path.join
    assert installed.Plugin("x", "os", "").load() is __import__("os")
    assert installed.Plugin("x", "pathlib:Path.exists [extra]", "").load() is not None
    with pytest.raises(ImportError):
        installed.Plugin("x", "no.such.module:x", "").load()
    with pytest.raises(AttributeError):
        installed.Plugin("x", "os:no_such", "").load()
