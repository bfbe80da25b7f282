"""What every test gets: an environment of its own, and golden files that change only by a flag."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("distprof", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("distprof"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "distprof")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job: programs that the tests start and interrupt would not notice.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files anew; the change says why they differ",
    )


@pytest.fixture(autouse=True)
def _own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither the user's cache, nor their terminal, nor their colours reach a test."""
    cache = tmp_path_factory.getbasetemp() / "distprof-cache"
    monkeypatch.setenv("DISTPROF_CACHE_DIR", str(cache))
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS"):
        monkeypatch.delenv(name, raising=False)


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
