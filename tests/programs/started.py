"""Starts a program with and without ``distprof capture``, in the environment of its libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.programs.declared import LIMIT_S, STEPS, Fault, Program

__all__ = ["ROOT", "SCRIPTS", "Ended", "has_module", "python", "started", "why_not"]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


def python() -> Path:
    """The interpreter of the programs' environment, which ``tasks.py programs`` makes."""
    told = os.environ.get("DISTPROF_PROGRAMS_PYTHON")
    return Path(told) if told else ROOT / ".venv-programs" / "bin" / "python"


def why_not(program: Program) -> str:
    """Why it cannot start here; empty if it can."""
    if not python().exists():
        return "there is no .venv-programs: run python3 tasks.py programs"
    return next((f"{name} is not installed" for name in program.needs if not has_module(name)), "")


@cache
def has_module(module: str) -> bool:
    """Whether that interpreter finds a module."""
    code = f"import importlib.util as u; assert u.find_spec({module!r})"
    return not subprocess.run([python(), "-c", code], capture_output=True, check=False).returncode


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a program left.

    Args:
        folder: Its run directory; empty without a capture.
        code: Its exit code.
        out: Its standard output.
        err: Its standard error.
        wall_s: How long it took, seconds.
    """

    folder: Path
    code: int
    out: str
    err: str
    wall_s: float

    @property
    def report(self) -> dict[str, Any]:
        """What distprof said."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_bytes())
        return found

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """Steps as the probes saw them."""
        lines = (self.folder / f"rank{rank:05d}" / "steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]


def started(
    program: Program,
    folder: Path | None = None,
    *,
    fault: Fault | None = None,
    steps: int = STEPS,
    options: tuple[str, ...] = (),
) -> Ended:
    """Run it to its end, under capture where there is a folder for it."""
    began = time.monotonic()
    with subprocess.Popen(
        _command(program, folder, options),
        cwd=SCRIPTS,
        env=_environment(fault, steps),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    wall_s = time.monotonic() - began
    return Ended(folder=folder or Path(), code=process.returncode, out=out, err=err, wall_s=wall_s)


def _command(program: Program, folder: Path | None, options: tuple[str, ...]) -> list[str]:
    capture = []
    if folder is not None:
        capture = [str(python()), "-m", "distprof", "capture", "-o", str(folder), *options, "--"]
    launch = [str(python())]
    if not program.starts_ranks:
        each = ("--nproc-per-node", str(program.ranks))
        launch += ["-m", "torch.distributed.run", "--standalone", *each]
    return [*capture, *launch, str(SCRIPTS / program.script), *program.arguments]


def _environment(fault: Fault | None, steps: int) -> dict[str, str]:
    """Nothing of a launcher or of this interpreter, one thread per rank, no accelerator."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH", "PROGRAM_FAULT")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = f"{python().parent}{os.pathsep}{kept.get('PATH', '')}"  # DeepSpeed builds with ninja
    told = {} if fault is None else {"PROGRAM_FAULT": fault.setting}
    return {
        **kept,
        **told,
        "PATH": path,
        "PROGRAM_STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "0",  # or it leaves out lines that look alike
    }
