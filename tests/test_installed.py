"""Headers are those that ``importlib.metadata`` finds."""

import sys
import zipfile
from importlib import metadata

import pytest

from distprof import installed
from distprof.installed import headers


def write_package(place, folder, keywords):
    made = place / folder
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Name: acme-tools\nKeywords: {keywords}\n\nKeywords: text\n")


@pytest.fixture
def only(monkeypatch, tmp_path):
    """A ``sys.path`` of two folders of this test and nothing else."""
    places = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setattr(sys, "path", [*map(str, places), str(tmp_path / "missing")])
    return places


@pytest.mark.parametrize("package", ["distprof", "numpy", "click", "no_such_package"])
def test_the_headers_of_this_environment_are_the_same(package):
    for name in ("Name", "Version", "Project-URL", "Requires-Dist", "Keywords-Nobody-Has"):
        try:
            known = metadata.metadata(package).get_all(name) or []
        except metadata.PackageNotFoundError:
            known = []
        assert list(headers(package, name)) == known


def test_the_package_that_comes_first_hides_the_other(only):
    write_package(only[0], "acme_tools-2.0.dist-info", "new")
    write_package(only[1], "Acme.Tools-1.0.dist-info", "old")
    assert headers("acme_tools", "Keywords") == ("new",)
    assert metadata.metadata("acme_tools").get_all("Keywords") == ["new"]


def test_an_old_fashioned_package_is_found(only):
    (only[0] / "acme_tools.egg-info").mkdir(parents=True)
    (only[0] / "acme_tools.egg-info" / "PKG-INFO").write_text("Keywords: old\n")
    assert headers("acme_tools", "Keywords") == ("old",)


def test_a_package_in_a_zip_file_is_found(monkeypatch, only, tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("acme_tools-1.0.dist-info/METADATA", "Name: acme-tools\nKeywords: zip\n")
    monkeypatch.setattr(sys, "path", [str(packed)])
    assert headers("acme_tools", "Keywords") == ("zip",)
    assert headers("other", "Keywords") == ()


def test_a_finder_of_another_kind_is_asked(monkeypatch, only):
    class Finder:
        @staticmethod
        def find_distributions(context):
            return [metadata.PathDistribution(only[0] / "acme-1.0.dist-info")]

        @staticmethod
        def find_spec(*_):
            return None

    write_package(only[0], "acme-1.0.dist-info", "hidden")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert headers("acme", "Keywords") == ("hidden",)


@pytest.mark.parametrize("by", ["itself", "importlib.metadata"])
def test_a_broken_package_costs_nothing_else(only, by, monkeypatch):
    if by != "itself":  # as with packages that bring a finder of their own
        monkeypatch.setattr(installed, "_installed", lambda: None)
    only[0].mkdir()
    (only[0] / "broken-1.0.dist-info").write_text("a file, not a folder")
    (only[0] / "empty-1.0.dist-info").mkdir()
    write_package(only[0], "good-1.0.dist-info", "good")
    assert headers("good", "Keywords") == ("good",)
    assert headers("empty", "Keywords") == ()
