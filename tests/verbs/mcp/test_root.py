"""The root of ``distprof mcp``: no name and no link leads out of it."""

import os
from pathlib import Path

import pytest

from distprof.errors import InputError, UsageError
from distprof.verbs import mcp as module
from distprof.verbs.mcp import Root


@pytest.fixture
def place(tmp_path):
    """A root with a run in it, and a secret outside."""
    (tmp_path / "root" / "run" / "rank0").mkdir(parents=True)
    (tmp_path / "root" / "run" / "rank0" / "trace.json").write_text("{}")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "trace.json").write_text("{}")
    return tmp_path


def found(place: Path, name: str) -> str:
    return Root(place / "root").find(name)


@pytest.mark.parametrize("name", ["run", "./run/", "run/rank0/..", "run/rank0/trace.json", "."])
def test_what_is_below_the_root_is_found(place, name):
    assert found(place, name) == os.path.realpath(place / "root" / name)


def test_an_absolute_path_below_the_root_is_found(place):
    assert found(place, str(place / "root" / "run")) == str((place / "root" / "run").resolve())


@pytest.mark.parametrize(
    "name",
    ["..", "../secret", "run/../../secret/trace.json", "/etc/passwd", "/", "../absent", "~"],
)
def test_what_is_outside_is_refused(place, name):
    with pytest.raises(InputError) as caught:
        found(place, name)
    if name != "~":  # a name like any other, which does not exist
        assert caught.value.found == "a path that leads out of it"


def test_the_refusal_does_not_say_whether_something_exists_outside(place):
    said = set()
    for name in ("../secret", "../absent"):
        with pytest.raises(InputError) as caught:
            found(place, name)
        said.add(str(caught.value).replace(name, "NAME"))
    assert len(said) == 1


@pytest.mark.parametrize(
    "name", ["s3://bucket/run", "file:///etc/passwd", "http://host/x", "zip::run", "run/a::b"]
)
def test_urls_are_refused(place, name):
    with pytest.raises(InputError, match="found: a URL"):
        found(place, name)


@pytest.mark.parametrize("name", ["run/*", "run/rank?", "[a-z]un"])
def test_patterns_are_refused(place, name):
    with pytest.raises(InputError, match="found: a pattern"):
        found(place, name)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5_000, "x/" * 5_000], ids=["null", "long", "deep"])
def test_names_that_no_file_can_have_are_refused(place, name):
    with pytest.raises(InputError):
        found(place, name)


def test_a_link_that_leads_out_is_refused_itself_and_wherever_it_lies(place):
    run = place / "root" / "run"
    (run / "rank0" / "more").symlink_to(place / "secret")
    with pytest.raises(InputError, match="leads out of it"):
        found(place, "run/rank0/more/trace.json")
    for name in ("run", ".", "run/rank0/trace.json"):
        with pytest.raises(InputError, match="a link inside it that leads out of the root"):
            found(place, name)


def test_a_link_behind_a_link_is_seen(place):
    """The folder that is asked for has only a link to a folder of the root, which has one out."""
    other = place / "root" / "other"
    other.mkdir()
    (other / "out").symlink_to(place / "secret" / "trace.json")
    (place / "root" / "run" / "in").symlink_to(other)
    with pytest.raises(InputError, match="leads out of the root"):
        found(place, "run")


def test_links_inside_the_root_and_circles_of_them_are_no_obstacle(place):
    run = place / "root" / "run"
    (run / "again").symlink_to(run)
    (run / "first").symlink_to(run / "rank0")
    assert found(place, "run/first/trace.json") == str((run / "rank0" / "trace.json").resolve())
    (run / "broken").symlink_to(run / "absent")
    assert found(place, "run") == str(run.resolve())


def test_a_circle_of_links_is_refused_in_a_sentence(place):
    (place / "root" / "a").symlink_to(place / "root" / "b")
    (place / "root" / "b").symlink_to(place / "root" / "a")
    with pytest.raises(InputError):
        found(place, "a")


def test_a_root_that_is_a_link_is_the_folder_it_leads_to(place):
    (place / "link").symlink_to(place / "root")
    assert Root(place / "link").find("run") == str((place / "root" / "run").resolve())


def test_a_folder_of_too_many_files_is_refused(place, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    for number in range(3):
        (place / "root" / "run" / f"{number}").touch()
    with pytest.raises(InputError, match="name a folder with fewer files"):
        found(place, "run")


@pytest.mark.parametrize("name", ["absent", "secret/trace.json", "a\0b"])
def test_a_root_that_is_no_folder_is_a_usage_error(place, name):
    with pytest.raises(UsageError, match="--root "):
        Root(str(place / name))
