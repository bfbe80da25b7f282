"""Jobs that several tests look at run once; most start warm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.jobs import Job, RunOnce, run_once_in, started_cold
from tests.warm import Starter


@pytest.fixture(scope="session")
def run_once(started_warm: Starter, shared_folder: Path) -> RunOnce:
    """Run a job, or look again at the one that had the same arguments."""

    def run(*arguments: str) -> Job:
        return run_once_in(shared_folder / "warm-jobs", *arguments, start=started_warm)

    return run


@pytest.fixture(scope="session")
def run_cold(shared_folder: Path) -> RunOnce:
    """The same, for tests of how processes start and end."""

    def run(*arguments: str) -> Job:
        return run_once_in(shared_folder / "jobs", *arguments, start=started_cold)

    return run


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the whole session, also among the processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
