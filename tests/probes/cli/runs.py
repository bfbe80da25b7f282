"""Runs ``distprof capture`` as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts.run_file import RunFile
from tests.warm import LIMIT_S, Starter

SCRIPTS = Path(__file__).parents[1] / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a capture left."""

    folder: Path
    code: int
    out: str
    err: str

    @property
    def run(self) -> RunFile:
        return msgspec.json.decode((self.folder / "run.json").read_bytes(), type=RunFile)

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_bytes())
        return found

    def lines(self, rank: int, file: str = "steps.jsonl") -> list[dict[str, Any]]:
        text = (self.folder / f"rank{rank:05d}" / file).read_text()
        return [json.loads(line) for line in text.splitlines()][1:]

    def states(self, rank: int) -> dict[str, str]:
        text = (self.folder / f"rank{rank:05d}" / "rank.json").read_text()
        return {probe["name"]: probe["state"] for probe in json.loads(text)["probes"]}

    def read(self, rank: int, file: str) -> Any:
        return json.loads((self.folder / f"rank{rank:05d}" / file).read_bytes())


def capture_command(folder: Path, *options: str, program: list[str]) -> list[str]:
    """The command line."""
    return [
        sys.executable,
        "-m",
        "distprof",
        "capture",
        "-o",
        str(folder),
        *options,
        "--",
        *program,
    ]


def environment() -> dict[str, str]:
    """One thread per rank, and nothing of a launcher around the tests."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def started_cold(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """As a shell starts it."""
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def captured(
    folder: Path, *options: str, program: list[str], start: Starter = started_cold
) -> Captured:
    """Run it to its end."""
    done = start(capture_command(folder, *options, program=program), environment())
    return Captured(folder=folder, code=done.returncode, out=done.stdout, err=done.stderr)
