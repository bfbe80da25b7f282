"""The wheel is what users get: its contents are checked and it is run away from the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from shutil import copyfile

import pytest

from tests.built_kernel import built_kernel

ROOT = Path(__file__).resolve().parent.parent
NO_SOURCE = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "dist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("check-wheel-contents"), wheel],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_data_file_of_the_packages_is_shipped(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to((ROOT / package).parent))
        for package in ("distprof", "probes/distprof_probes", "reference_runs/distprof_runs")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= shipped


def test_wheel_runs_away_from_the_source(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    sample = ROOT / "tests/golden/kineto/mi250-1gpu"
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "distprof", "analyze", str(sample), "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_demo_needs_nothing_but_the_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "torch.py").write_text("raise ImportError('not installed')\n")
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "distprof", "demo", "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "4 of 8 ranks" in ran.stdout


def built(out: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def extensions_in(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_kernel_makes_it_a_wheel_of_one_platform(wheel: Path, tmp_path: Path) -> None:
    built_kernel()  # skips where nothing can compile
    assert extensions_in(wheel) == ["distprof/_kernel.abi3.so"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-cp311-abi3-{platform}.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    asked = "from distprof.kernel import explain; print(*explain())"
    for switch, answer in (("on", "True used to read"), ("off", "False switched off")):
        ran = subprocess.run(
            [sys.executable, "-P", "-c", asked],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "DISTPROF_KERNEL": switch},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.startswith(answer)


@pytest.mark.parametrize("why", [{"CXX": "/no/such/compiler"}, {"DISTPROF_KERNEL": "off"}])
def test_without_a_compiler_the_wheel_is_plain_python(why: dict[str, str], tmp_path: Path) -> None:
    wheel = built(tmp_path, **why)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(wheel) == []


def test_a_build_that_needs_the_kernel_fails_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        built(tmp_path, CXX="/no/such/compiler", DISTPROF_KERNEL="required")


@pytest.mark.slow
def test_two_builds_are_the_same_to_the_byte(tmp_path: Path) -> None:
    """Wherever, and under whatever permissions, time zone and order of sets they are made."""
    builds = []
    for number, (bits, zone) in enumerate(((0o700, "Asia/Tokyo"), (0o777, "UTC"))):
        source, out = tmp_path / f"source-{number}", tmp_path / f"out-{number}"
        shutil.copytree(
            ROOT, source, ignore=shutil.ignore_patterns(*NO_SOURCE), copy_function=copyfile
        )
        for path in source.rglob("*"):
            path.chmod(path.stat().st_mode & bits)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", out],
            cwd=source,
            env={
                **os.environ,
                "SOURCE_DATE_EPOCH": "1700000000",
                "TZ": zone,
                "PYTHONHASHSEED": str(number),
            },
            check=True,
            capture_output=True,
        )
        builds.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert len(builds[0]) == 2
    assert builds[0] == builds[1]
    (archive,) = (tmp_path / "out-0").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"hatch_build.py", "native/module.cpp", "native/chunk.hpp"} <= names
    assert not [name for name in names if name.endswith(".so")]
