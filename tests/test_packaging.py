"""What is needed to publish agrees with pyproject.toml, and checkers of each format accept it."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from distprof.version import __version__
from tests.optional import optional

rattler_build = optional("rattler_build")
trove_classifiers = optional("trove_classifiers")

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = ROOT / "conda" / "recipe.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
CONDA_NAMES = {"isal": "python-isal"}


def conda_requirement(requirement: str) -> str:
    """A requirement of the wheel as conda writes it; a package for all platforms has no markers."""
    name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+)", requirement.partition(";")[0]).groups()
    return f"{CONDA_NAMES.get(name, name)} {bound}"


@pytest.fixture(scope="module")
def rendered():
    """The recipe as rattler-build understands it."""
    (variant,) = rattler_build.Stage0Recipe.from_file(str(RECIPE)).render()
    return variant.recipe.to_dict()


def test_the_conda_package_needs_what_the_wheel_needs(rendered):
    python = f"python {PROJECT['requires-python']}"
    needed = [conda_requirement(each) for each in PROJECT["dependencies"]]
    assert sorted(rendered["requirements"]["run"]) == sorted([python, *needed])
    backend = [conda_requirement(each) for each in PYPROJECT["build-system"]["requires"]]
    assert sorted(rendered["requirements"]["host"]) == sorted([python, "pip", *backend])


def test_the_conda_package_says_what_the_wheel_says(rendered):
    assert rendered["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    about = rendered["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert about["license_file"] == PROJECT["license-files"]
    points = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert rendered["build"]["python"]["entry_points"] == points
    imported = yaml.safe_load(RECIPE.read_text("utf-8"))["tests"][0]["python"]["imports"]
    assert imported == PYPROJECT["tool"]["check-wheel-contents"]["toplevel"]


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == __version__


def test_classifiers_exist():
    unknown = set(PROJECT["classifiers"]) - trove_classifiers.classifiers
    assert unknown == set()


def test_hadolint_accepts_the_dockerfile():
    done = subprocess.run(
        [BIN / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_the_container_runs_distprof_without_privileges_and_as_small_as_its_base():
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.+)$", last, re.M) == ["1000"]
    assert re.findall(r"^ENTRYPOINT (.+)$", last, re.M) == ['["distprof"]']
    assert re.findall(r"^COPY --from=build (.+)$", last, re.M) == ["/opt/distprof /opt/distprof"]
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", base) for base in bases)


def test_what_the_container_is_built_from_is_enough_for_the_wheel(tmp_path):
    """.dockerignore lets only some files through, and README and licence are needed too."""
    source = tmp_path / "source"
    source.mkdir()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            file = ROOT / line[1:]
            copy = shutil.copytree if file.is_dir() else shutil.copy
            copy(file, source / file.name)
    out = ["--outdir", str(tmp_path / "dist")]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", *out]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("distprof/cli/__init__.py", "distprof/demo/__init__.py"):
        assert needed in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert (source / "constraints.txt").is_file()


def test_the_changelog_is_gathered_from_fragments_of_all_kinds(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    kinds = {kind["directory"]: kind["name"] for kind in PYPROJECT["tool"]["towncrier"]["type"]}
    (tmp_path / "changelog.d").mkdir()
    for kind in kinds:
        (tmp_path / f"changelog.d/+sample.{kind}.md").write_text(f"A change of kind {kind}.\n")
    command = [BIN / "towncrier", "build", "--yes", "--version", "9.9.9", "--date", "2030-01-02"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    before, _, after = written.partition("\n## 9.9.9 (2030-01-02)\n")
    section = after[: after.index("\n## ")]
    assert before.startswith("# Changelog")
    assert re.findall(r"^### (.+)$", section, re.M) == list(kinds.values())
    assert [kind for kind in kinds if f"A change of kind {kind}." not in section] == []
