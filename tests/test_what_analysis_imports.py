"""What ``distprof analyze`` loads: an import that creeps in costs every process of every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "kineto" / "mi250-1gpu"
PROGRAM = """
import sys
from distprof.cli import main

assert main([*sys.argv[1:], "--executor", "serial", "--format", "json"]) == 0
print("loaded", *sorted({"pandas", "torch", "hta", "dask"} & set(sys.modules)), file=sys.stderr)
"""


def test_analysis_imports_neither_pandas_nor_torch(tmp_path: Path) -> None:
    """pandas alone takes 0.3 s, and pyarrow imports it unasked in its conversions from numpy."""
    arguments = ["analyze", str(GOLDEN), "--cache-dir", str(tmp_path)]
    for cache in ("cold", "warm"):
        finished = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
        )
        assert finished.stderr.splitlines()[-1].split() == ["loaded"], cache
