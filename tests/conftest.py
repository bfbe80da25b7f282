"""What every test gets: an environment of its own, and golden files that change only by a flag."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import settings

from tests.e2e import jobs
from tests.warm import LIMIT_S, Starter, WarmPython

settings.register_profile("distprof", deadline=None, print_blob=True, max_examples=20)
settings.register_profile("ci", parent=settings.get_profile("distprof"), derandomize=True)
settings.register_profile("nightly", parent=settings.get_profile("distprof"), max_examples=1_000)
settings.load_profile("ci" if os.environ.get("CI") else "distprof")

LONG_FIRST = (
    *("e2e/test_workloads", "reference_runs/test_model_parallel", "e2e", "probes/cli"),
    *("reference_runs", "probes", "test_fuzz_inputs", "sections/pipeline", "sections"),
)
"""Below ``tests/``: what takes longest begins first, lest one process is left alone with it."""

OF_PROCESSES = ("e2e", "probes", "reference_runs")
"""Below ``tests/``: tests of real processes, which another program on the machine may disturb."""

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
# jsonschema imports it for a format that no schema here has; it takes four seconds.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job: programs that the tests start and interrupt would not notice.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files anew; the change says why they differ",
    )


def pytest_report_header() -> str:
    return "nightly: some examples and cases are left out here (python3 tasks.py nightly)"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes ten thousand tests and no garbage: looking for some takes a sixth of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Ten thousand tests stay until the end: no collection of garbage goes through them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent

    @cache
    def turn(file: Path) -> int:
        place = file.relative_to(tests).as_posix() if tests in file.parents else ""
        return next(
            (turn for turn, begin in enumerate(LONG_FIRST) if place.startswith(begin)),
            len(LONG_FIRST),
        )

    items.sort(key=lambda item: turn(item.path))
    for item in items:
        folder = item.path.relative_to(tests).parts[0] if tests in item.path.parents else ""
        if folder in OF_PROCESSES or item.get_closest_marker("distributed"):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A real job that is run again is another job."""
    jobs.attempt = getattr(item, "execution_count", 1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No other test runs while one is marked as ``alone``, in no process of pytest-xdist."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    own: Path = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    with _admitted(own.parent, item):
        return (yield)


@contextmanager
def _admitted(locks: Path, item: pytest.Item) -> Iterator[None]:
    """Wait at the door, so that those who come later cannot keep a test from being alone."""
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with (locks / "door").open("w") as door, (locks / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache reaches no test, nor a fixture that many tests share.

    It is in the usual place, where small traces stay in memory: tests of the cache name theirs.
    What programs leave in the temporary folder, such as torchrun's logs, goes with the tests.
    """
    temporary = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", temporary)
        environment.setattr(tempfile, "tempdir", temporary)
        environment.delenv("DISTPROF_CACHE_DIR", raising=False)
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "usual-cache"))
        yield


@pytest.fixture(autouse=True)
def _own_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the user's terminal nor their colours reach a test."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """A Python that has imported torch, in which commands start."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def started_warm(warm_python: WarmPython) -> Starter:
    """Run a Python command whose processes need not import torch."""

    def start(command: Sequence[str], environment: Mapping[str, str]) -> CompletedProcess[str]:
        return warm_python.run(command, env=environment, timeout_s=LIMIT_S)

    return start


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare text with a golden file, or write it with ``--update-golden``."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"{file} is missing: make it with --update-golden"
        assert text == file.read_text(encoding="utf-8")

    return compare
