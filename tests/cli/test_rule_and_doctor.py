"""``rule`` explains, ``doctor`` finds what is wrong with an installation."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from distprof.cli import doctor as clinic
from distprof.cli.app import main
from distprof.cli.doctor import Check, cache_check
from distprof.rules import all_rules

ROOT = Path(__file__).parents[2]
CODE = all_rules()[0].code


def test_a_rule_is_explained_by_code_or_name(capsys: pytest.CaptureFixture[str]) -> None:
    rule = all_rules()[0]
    assert main(["rule", rule.code]) == 0
    by_code = capsys.readouterr().out
    assert main(["rule", rule.name]) == 0
    assert capsys.readouterr().out == by_code
    assert rule.name in by_code
    assert "How to fix" in by_code


def test_a_rule_as_json_holds_its_page_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", CODE, "--format", "json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["code"] == CODE
    assert described["page"].startswith("# ")
    assert all({"value", "meaning"} == set(limit) for limit in described["limits"].values())


def test_a_rule_as_markdown_is_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", CODE, "--format", "md"]) == 0
    assert capsys.readouterr().out == all_rules()[0].page


@pytest.mark.parametrize("name", ["text", "md", "json"])
def test_all_rules_are_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "--format", name]) == 0
    unnamed = capsys.readouterr().out
    assert main(["rule", "--all", "--format", name]) == 0
    out = capsys.readouterr().out
    assert all(rule.code in out and rule.name in out for rule in all_rules())
    assert unnamed == out


def test_an_unknown_rule_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "low-overlp"]) == 2
    assert "low-overlap" in capsys.readouterr().err


def test_doctor_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert code == (1 if "PROBLEM" in out else 0)
    for name in ("distprof", "Python", "numpy", "extras", "cache", "NVML", "CPUs"):
        assert name in out


@pytest.mark.parametrize("width", ["60", "120"])
def test_doctor_keeps_to_the_width(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert sum(line[:1] != " " for line in lines if line) <= 10


def test_doctor_exits_with_1_when_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Check(name="cache", state="problem", found="\x1bfull", fix="delete it")
    monkeypatch.setattr(clinic, "all_checks", lambda: iter([bad]))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "delete it" in out
    assert out.endswith("\n1 problem\n")


def test_sensors_without_their_binding_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    check = clinic._device()
    assert (check.state, check.fix) == ("absent", "pip install 'distprof[run]'")


def test_absent_extras_are_named_with_their_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clinic.util, "find_spec", lambda name: name == "hta" or None)
    check = clinic._extras()
    there, _, lacking = check.found.partition("; not installed: ")
    assert check.state == "ok"
    assert there == "hta"
    assert "dask" in lacking
    assert "pip install 'distprof[NAME]'" in lacking


def test_a_missing_requirement_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clinic, "_version_of", lambda name: None if name == "numpy" else "1.0")
    check = clinic._packages()
    assert (check.state, check.fix) == ("problem", "pip install numpy")


def test_a_package_that_some_machines_lack_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clinic, "_version_of", lambda name: None if name == "isal" else "1.0")
    check = clinic._packages()
    assert check.state == "ok"
    assert "no isal: zlib" in check.found


def test_a_cache_says_where_and_how_large(tmp_path: Path) -> None:
    (tmp_path / "table.parquet").write_bytes(b"x" * 2_000)
    check = cache_check(tmp_path)
    assert str(tmp_path) in check.found
    assert "2.00 kB" in check.found


def test_a_cache_that_does_not_exist_yet_is_fine(tmp_path: Path) -> None:
    assert "holds 0 B" in cache_check(tmp_path / "later" / "cache").found


def test_a_cache_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clinic.os, "access", lambda path, mode: False)
    check = cache_check(tmp_path)
    assert check.state == "problem"
    assert "--cache-dir" in check.fix


def declared() -> dict[str, Any]:
    """What pyproject.toml says about the package."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def test_doctor_knows_every_extra() -> None:
    assert set(declared()["optional-dependencies"]) == {*clinic._EXTRAS, "all"}


def test_doctor_knows_every_required_package() -> None:
    names = [re.split(r"[><=;]", each)[0] for each in declared()["dependencies"]]
    assert sorted(clinic._REQUIRED) == sorted(names)
    marked = [re.split(r"[><=;]", each)[0] for each in declared()["dependencies"] if ";" in each]
    assert sorted(clinic._NOT_EVERYWHERE) == sorted(marked)


def test_doctor_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--format", "json"])
    said = json.loads(capsys.readouterr().out)
    assert said["problems"] == sum(check["state"] == "problem" for check in said["checks"])
    assert code == (1 if said["problems"] else 0)
    assert {"name", "state", "found", "fix"} == set(said["checks"][0])
    assert "torch" in [check["name"] for check in said["checks"]]


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "CUDA 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\n", "HIP 7.1"),
        ("cuda: Optional[str] = None\n", "CPU only"),
    ],
)
def test_what_torch_is_built_for_is_read_and_not_imported(
    text: str, built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "version.py").write_text(text)
    spec = util.spec_from_file_location(
        "torch", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    monkeypatch.setattr(clinic.util, "find_spec", lambda name: spec)
    assert clinic._built_for() == built


def test_an_extra_whose_parent_package_is_absent_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``find_spec("a.b")`` raises where there is no ``a``."""
    monkeypatch.setitem(clinic._EXTRAS, "nothing", "no_such_package.part")
    assert "nothing" in clinic._extras().found.partition("not installed")[2]
