"""What commands load: an import that creeps in costs every process of every run.

Modules are compared and no times: ``benchmarks/startup.py`` measures those.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "kineto"
PROGRAM = """
import sys
from distprof.cli import main

code = main(sys.argv[1:])
print("loaded", *sys.modules, file=sys.stderr)
sys.exit(code)
"""
ARRAYS = {"numpy", "pyarrow", "pandas", "fsspec"}
DRAWING = {"rich", "markdown_it", "pygments"}
NEVER = {
    "torch",
    "hta",
    "dask",
    "distributed",
    "importlib.metadata",
    "asyncio",
}
LOADED = {
    "--help": NEVER | ARRAYS | DRAWING | {"msgspec", "distprof.config", "distprof.api"},
    "analyze --help": NEVER | ARRAYS | DRAWING | {"msgspec", "distprof.config", "distprof.api"},
    "check --help": NEVER | ARRAYS | DRAWING | {"msgspec", "distprof.api"},
    "export --help": NEVER | ARRAYS | DRAWING | {"msgspec", "distprof.api"},
    "watch --help": NEVER | ARRAYS | DRAWING | {"msgspec", "distprof.api"},
    "plan --help": NEVER | ARRAYS | DRAWING | {"distprof.api", "distprof.rules"},
    "rule": NEVER | ARRAYS | DRAWING | {"distprof.api", "distprof.ingest", "distprof.documents"},
    "rule COM101 --format md": NEVER | ARRAYS | DRAWING,
    "rule COM101": NEVER | ARRAYS | {"rich.progress", "rich.traceback"},
    "plan --model llama2-7b --gpus 8": NEVER | {"pyarrow", "pandas", "fsspec", "distprof.ingest"},
    "doctor": ARRAYS | DRAWING | {"torch", "distprof.api", "distprof.ingest"},
    "analyze mi250-1gpu": NEVER
    | (ARRAYS - {"numpy"})
    | {"markdown_it", "pygments", "rich.progress"},
    "analyze mi250-1gpu --format json": NEVER | (ARRAYS - {"numpy"}) | DRAWING | {"ssl", "socket"},
    "analyze gloo-ddp-2ranks --format json": NEVER | (ARRAYS - {"numpy"}) | DRAWING,
}
"""A command to modules that it has no use for."""


def loaded_by(command: list[str]) -> set[str]:
    """Modules of a process that runs a command."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        capture_output=True,
        text=True,
        check=True,
        cwd=GOLDEN,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", LOADED)
def test_a_command_loads_only_what_it_uses(command: str) -> None:
    loaded = loaded_by(command.split())
    assert "distprof.cli" in loaded
    assert loaded & LOADED[command] == set()


def test_analysis_imports_neither_pandas_nor_torch(tmp_path: Path) -> None:
    """pandas alone takes 0.3 s, and pyarrow imports it unasked in its conversions from numpy."""
    command = ["analyze", "mi250-1gpu", "--cache-dir", str(tmp_path), "--format", "json"]
    for cache in ("cold", "warm"):
        loaded = loaded_by(command)
        assert loaded & (NEVER | {"pandas"}) == set(), cache
        assert "pyarrow.parquet" in loaded, "the cache was used"
