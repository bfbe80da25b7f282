"""What commands load: an import that creeps in costs every process of every run.

Modules are compared and no times: ``benchmarks/startup.py`` measures those.
"""

from __future__ import annotations

import os
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
MEGABYTES = {"_hashlib", "_sqlite3"}  # 4.5 MB: as much as the tables of a small trace
NEVER = {
    "torch",
    "hta",
    "dask",
    "distributed",
    "importlib.metadata",
    "asyncio",
}
LOGS = {"logs", "machine", "nccl", "operator_table", "small_tables"}
LOGS = {f"distprof.ingest.kinds.{name}" for name in LOGS} | {"distprof.ingest.sensors"}
"""What reads text, which traces are not."""

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
    | MEGABYTES
    | LOGS
    | {"markdown_it", "pygments", "rich.progress"},
    "analyze mi250-1gpu --format json": NEVER
    | (ARRAYS - {"numpy"})
    | DRAWING
    | MEGABYTES
    | {"ssl", "socket", "html"},
    "analyze gloo-ddp-2ranks --format json": NEVER
    | (ARRAYS - {"numpy"})
    | DRAWING
    | MEGABYTES
    | LOGS,
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


ALONE = """
import os, sys
from distprof.cli import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("threads", os.environ.get("OPENBLAS_NUM_THREADS", "all"), file=sys.stderr)

sys.meta_path.insert(0, Watch())
main(sys.argv[1:])
print("left", os.environ.get("OPENBLAS_NUM_THREADS", "none"), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        *("analyze mi250-1gpu", "op mi250-1gpu aten::mm", "hang ../flight/gloo-ddp-3ranks-hang"),
        *("export prometheus mi250-1gpu", "compare mi250-1gpu mi250-1gpu", "history show"),
        *("check mi250-1gpu --baseline none.json", "scale mi250-1gpu mi250-1gpu"),
        *("plan --model llama2-7b --gpus 8", "fabric ../nccl-tests", "watch no-such-log"),
    ],
)
def test_every_command_starts_without_threads_for_linear_algebra(
    tmp_path: Path, command: str
) -> None:
    """They take the time of a short command on each CPU, and a process with threads cannot fork."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=GOLDEN,
        env=environment,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith(("threads", "left"))]
    assert said == ["threads 1", "left none"]
