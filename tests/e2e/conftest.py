"""Jobs that several tests look at run once."""

from __future__ import annotations

import os

import pytest

from tests.e2e.jobs import Job, RunOnce, run_once_in


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Run a job, or look again at the one that had the same arguments."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def run(*arguments: str) -> Job:
        return run_once_in(shared / "jobs", *arguments)

    return run
