"""What the tests' warm Python promises: imports are done before a process starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.warm import Starter

pytestmark = pytest.mark.distributed

NEEDED = ("torch.distributed.pipelining", "distprof_runs.launching.worker", "distprof.cli.analyze")


def test_a_process_finds_what_it_would_import(tmp_path: Path, started_warm: Starter) -> None:
    """Nothing else fails where they are missing: jobs only take three times as long."""
    script = tmp_path / "looks.py"
    script.write_text(f"import sys; print([name in sys.modules for name in {NEEDED}])")
    done = started_warm([sys.executable, str(script)], os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, True, True]\n"
