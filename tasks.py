#!/usr/bin/env python3
"""The task runner: ``python3 tasks.py demo`` and ``python3 tasks.py test`` need no other set-up.

It needs only Python 3.11 or newer: it creates ``.venv`` in this folder, installs the versions
pinned in ``constraints.txt``, and runs the task there. Run it without arguments to list the tasks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PROGRAMS_VENV = ROOT / ".venv-programs"
PROGRAMS_PINS = "tests/programs/requirements.txt"
IN_PARALLEL = (
    *("--dist", "loadfile", "--no-loadscope-reorder"),  # the long ones first
    *("--max-worker-restart", "1"),  # a test that hangs ends its process, and is begun again
)
PACKAGES = ("distprof", "probes/distprof_probes", "reference_runs/distprof_runs")
SYSTEM_PACKAGES = {
    "chromium": "chromium",
    "ip": "iproute2",
    "prometheus": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
}
"""Debian package of each program that tests need; they are skipped where it is missing."""

GATE_BASELINE = "benchmarks/gate-baseline.json"
GATE_RUN = (
    "ddp --ranks 2 --device cpu --compute sleep --forward-ms 40 --backward-ms 80"
    " --layers 2 --hidden 64 --sequence 32 --batch 1 --steps 12"
)


AUDIT = ("pip-audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip", "--strict")


def demo(*arguments: str) -> None:
    """Train on two CPU ranks, slow one down on purpose, and report which one it is."""
    install()
    job = ("run", "ddp", "--ranks", "2", "--device", "cpu", "--fault", "slow-rank=1:1.5")
    run("distprof", *job, *arguments)


def test(*arguments: str) -> None:
    """Run all checks: lint, types, imports, docs, tests."""
    started = time.monotonic()
    install("dev", "audit")
    install_system_packages()
    together(lint, types, imports, docs, site, bill, weaknesses)
    for task in (gate, unit):
        say(f"{task.__name__}: {summary(task)}")
        task(*(arguments if task is unit else ()))
    say(f"all checks passed in {time.monotonic() - started:.0f} s")


def lint() -> None:
    """Check formatting and lint of the whole tree."""
    install("dev")
    run("ruff", "format", "--check", "--quiet", ".")
    run("ruff", "check", "--quiet", ".")


def types() -> None:
    """Check types of the three packages and of the benchmarks strictly."""
    install("dev")
    run("mypy")
    run("mypy", "--explicit-package-bases", "benchmarks")


def imports() -> None:
    """Check that imports follow the layers."""
    install("dev")
    run("lint-imports", "--no-logo")


def docs(*arguments: str) -> None:
    """Check that generated pages match the code (``docs --write`` updates them)."""
    install("dev")
    run("python", "-m", "docs.build", *(arguments or ("--check",)))


def site() -> None:
    """Build the documentation site into build/site/VERSION; any warning is an error."""
    install("dev")
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # an advertisement, not about our pages
    run("python", "-m", "mkdocs", "build", "--strict")  # --quiet would hide warnings from it


def gate(*arguments: str) -> None:
    """Compare the speed of two sleeping CPU ranks with a baseline (``gate --update`` updates it).

    Its steps take almost the same time on all machines, so the baseline may come from another
    machine, with a wide tolerance. Further arguments go to the run: ``gate --fault
    slow-rank=1:2`` must fail.
    """
    install("dev")
    accepts = arguments[:1] == ("--update",)
    job = " ".join((GATE_RUN, *arguments[accepts:]))
    how = ("--update-baseline", "--repeats", "10") if accepts else ("--repeats", "3")
    lenient = ("--allow-unlike", "--tolerance", "step_time=0.25", "--session-noise", "0.05")
    with tempfile.TemporaryDirectory() as folder:
        place = ("--baseline", GATE_BASELINE, "--sweep", f"{folder}/runs")
        run("distprof", "check", "--run", job, *how, *place, *lenient)


def unit(*arguments: str) -> None:
    """Run the tests (further arguments go to pytest)."""
    install("dev")
    compiled()
    run("pytest", *processes(), *IN_PARALLEL, *arguments)


def kernel() -> None:
    """Compile distprof._kernel into the checkout, as an installation does."""
    install("dev")
    run("python", "hatch_build.py")


def nightly(*arguments: str) -> None:
    """Run examples and cases that ``unit`` skips, and many more examples of each property."""
    install("dev")
    chosen = ("-m", "nightly or hypothesis", "--hypothesis-profile", "nightly")
    run("pytest", *processes(), *IN_PARALLEL, *chosen, *arguments)


def programs(*arguments: str) -> None:
    """Run programs of other libraries under capture, in .venv-programs; before a release."""
    install("dev")
    install_programs()
    run("pytest", "-m", "programs", "tests/programs", *arguments)


def coverage() -> None:
    """Run the tests and list the lines and branches that they do not reach."""
    install("dev")
    run(
        "pytest",
        *processes(),
        *IN_PARALLEL,
        "--quiet",
        "--cov",
        "--cov-report=term-missing:skip-covered",
    )


def bill() -> None:
    """Write a bill of materials of the virtual environment: dist/sbom.json (CycloneDX)."""
    install("audit")
    (ROOT / "dist").mkdir(exist_ok=True)
    made = ("--output-reproducible", "--output-format", "JSON", "--output-file", "dist/sbom.json")
    run("cyclonedx-py", "environment", "--pyproject", "pyproject.toml", *made, str(BIN / "python"))


def audit() -> None:
    """Ask the package index for known weaknesses of pinned versions; fail if there are any."""
    bill()
    run(*AUDIT)


def weaknesses() -> None:
    """Say which pinned versions have known weaknesses: an advisory of today is no broken test."""
    install("audit")
    program, *arguments = AUDIT
    command = [str(BIN / program), *arguments, "--timeout", "5"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
    except subprocess.TimeoutExpired:
        say("the package index did not answer within 120 s: weaknesses are not known")
        return
    error = done.stderr.strip().rpartition("\n")[2]
    is_known = done.returncode == 0 or done.stdout.strip()
    say((done.stdout or error).strip() if is_known else f"weaknesses are not known: {error}")


def changelog(version: str = "next") -> None:
    """Show the next section of the changelog; ``changelog 0.1.0`` writes it, before a release."""
    install("dev")
    how = "--draft" if version == "next" else "--yes"
    run("towncrier", "build", how, "--version", version)


def release() -> None:
    """Build what is committed, twice and apart; leave it with its checksums if both are the same.

    The pinned build backend is used, and all times in the archives are those of the commit, so
    anybody who builds that commit gets the same bytes.
    """
    install("dev")
    commit_time = output("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as folder:
        built = [build_in(Path(folder) / name, commit_time) for name in ("first", "second")]
        sums = [[f"{digest(file)}  {file.name}" for file in files] for files in built]
        if sums[0] != sums[1]:
            sys.exit(f"two builds of one commit differ: {sums[0]} and {sums[1]}")
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in built[0]:
            shutil.copy(file, ROOT / "dist")
    (ROOT / "dist" / "SHA256SUMS").write_text("\n".join([*sums[0], ""]))
    say(f"dist/ holds {' and '.join(file.name for file in built[0])}")


def build_in(folder: Path, commit_time: str) -> list[Path]:
    """Build wheel and source archive from a copy of the last commit, made in ``folder``."""
    source, out = folder / "source", folder / "out"
    call(["git", "clone", "--quiet", str(ROOT), str(source)])
    command = [str(BIN / "python"), "-m", "build", "--no-isolation", "--outdir", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time}
    made = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        sys.exit(f"the build failed:\n{made.stdout}{made.stderr}")
    return sorted(out.iterdir())


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def output(*command: str) -> str:
    """What a command prints on standard output; it must succeed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


TASKS: tuple[Callable[..., None], ...] = (
    demo,
    test,
    lint,
    types,
    imports,
    docs,
    site,
    gate,
    unit,
    kernel,
    nightly,
    programs,
    coverage,
    bill,
    audit,
    weaknesses,
    changelog,
    release,
)


def together(*tasks: Callable[..., None]) -> None:
    """Run tasks in parallel, each on at most one core; each reports when it ends."""

    def ended(task: Callable[..., None]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, __file__, task.__name__]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        found = [(task, threads.submit(ended, task)) for task in tasks]
        for task, end in found:
            say(f"{task.__name__}: {summary(task)}")
            sys.stderr.write(end.result().stdout + end.result().stderr)
    failed = [end.result().returncode for _, end in found if end.result().returncode]
    if failed:
        sys.exit(failed[0])


def install(*groups: str) -> None:
    """Make .venv with the packages of ``groups``."""
    into(VENV, ".[run]", *(f"--group={group}" for group in groups), what=groups or ("runtime",))


def install_programs() -> None:
    """Make the environment of ``tests/programs``, whose libraries the project does not need."""
    known = ("accelerate", "lightning", "transformers")
    into(PROGRAMS_VENV, ".[run]", *known, "-r", PROGRAMS_PINS, what=("programs",))


def install_system_packages() -> None:
    """Install what tests need from Debian: only in CI, only as root; nothing fails without it."""
    missing = [package for name, package in SYSTEM_PACKAGES.items() if not shutil.which(name)]
    if not (missing and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get")):
        return
    say(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("install", "--yes", "--no-install-recommends")
    for command in (("update",), *((*install, package) for package in missing)):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, check=False, stdout=subprocess.DEVNULL
        )
        if done.returncode:
            say(f"apt-get failed: {command[-1]} (tests that need it are skipped)")


def into(folder: Path, *packages: str, what: Sequence[str]) -> None:
    """Create a virtual environment and install into it, once per set of pins.

    Args:
        folder: The environment.
        packages: Arguments of ``pip install --editable``: the project with its extras, and more.
        what: Names of what is installed, for a stamp of each and the line of progress.
    """
    stamps, python = [folder / f".installed-{name}" for name in what], folder / BIN.name / "python"
    pins = hash_of("pyproject.toml", "constraints.txt", PROGRAMS_PINS, *compiled_from())
    if all(stamp.is_file() and stamp.read_text() == pins for stamp in stamps):
        return
    if not python.exists():
        say(f"creating {folder.name}")
        make_venv(folder)
    say(f"installing {' '.join(what)} packages into {folder.name}")
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
    call([*pip, "--upgrade", "pip"])
    call([*pip, "--editable", *packages])
    for stamp in stamps:
        stamp.write_text(pins)


def hash_of(*names: str) -> str:
    """What these files of the project pin."""
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def compiled_from() -> list[str]:
    """What an installation compiles: when it changes, so must the installation."""
    sources = (path for path in (ROOT / "native").iterdir() if path.is_file())
    native = sorted(path.relative_to(ROOT).as_posix() for path in sources)
    return ["hatch_build.py", *native]


def processes() -> tuple[str, str]:
    """How many processes of pytest: three for two cores, as tests of jobs wait for their ranks."""
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return "-n", str(cores + cores // 2)


def compiled() -> None:
    """Compile the packages: hundreds of processes start, and may be forbidden to write bytecode."""
    run("python", "-m", "compileall", "-q", "-j", "0", *PACKAGES)


def make_venv(folder: Path) -> None:
    """Create an environment, or name the system package that is missing."""
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], cwd=ROOT, check=False)
    if made.returncode != 0:
        sys.exit(
            "python3 -m venv failed: this Python lacks venv or ensurepip"
            " (on Debian and Ubuntu: apt install python3-venv)"
        )


def run(program: str, *arguments: str) -> None:
    """Run a program of the virtual environment in the project's folder; stop if it fails."""
    call([str(BIN / program), *arguments])


def call(command: Sequence[str]) -> None:
    """Run a command in the project's folder; exit with its exit code if it fails."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    finished = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if finished.returncode != 0:
        say(f"failed: {' '.join(Path(part).name for part in command[:1])} {' '.join(command[1:])}")
        sys.exit(finished.returncode)


def say(text: str) -> None:
    """Print one line of progress."""
    sys.stderr.write(f"── {text}\n")
    sys.stderr.flush()


def summary(task: Callable[..., None]) -> str:
    """The first line of a task's description."""
    return (task.__doc__ or "").splitlines()[0]


def main(arguments: Sequence[str]) -> None:
    """Run the named task, or list them."""
    if sys.version_info < (3, 11):  # noqa: UP036  # users may have an older version
        sys.exit(f"distprof needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    tasks = {task.__name__: task for task in TASKS}
    if not arguments or arguments[0] not in tasks:
        listing = "\n".join(f"  {name:<9} {summary(task)}" for name, task in tasks.items())
        sys.exit(f"usage: python3 tasks.py TASK [ARGUMENTS]\n{listing}")
    try:
        tasks[arguments[0]](*arguments[1:])
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
