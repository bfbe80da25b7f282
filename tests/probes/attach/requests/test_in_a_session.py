"""A session takes requests while it is open, unless the user leaves ``attach`` out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'distprof[run]'")

PROGRAM = """
import json, sys, threading, time
from pathlib import Path

import torch
from distprof_probes import ProbeOptions, session
from distprof_probes.attach.sockets import local_ranks, turn_file

run_dir, has_attach = Path(sys.argv[1]), sys.argv[2] == "attach"


def looks():
    return any(thread.name == "distprof-requests" for thread in threading.enumerate())


def eventually(holds):
    limit = time.monotonic() + 30
    while not holds() and time.monotonic() < limit:
        time.sleep(0.01)
    return holds()


options = ProbeOptions(mode="always-on", attach=has_attach, measure_overhead=False)
with session(run_dir, options=options, rank=5, world_size=8) as opened:
    seen = has_attach and eventually((run_dir / "requests").is_dir)
    said = {"looks": looks(), "folder": seen, "ranks": sorted(local_ranks(run_dir))}
    opened.step()
said["turn"] = eventually(lambda: not looks()) and turn_file(run_dir).exists()
said["folder_in_the_end"] = (run_dir / "requests").exists()
print(json.dumps(said))
"""


def said(folder: Path, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.distributed
def test_a_rank_looks_for_requests_until_its_session_ends(tmp_path: Path) -> None:
    assert said(tmp_path / "run", "attach") == {
        "looks": True,
        "folder": True,
        "ranks": [5],
        "turn": False,
        "folder_in_the_end": True,
    }
    told = json.loads((tmp_path / "run" / "rank00005" / "attach.json").read_bytes())
    assert told["takes_requests"]


@pytest.mark.distributed
def test_no_attach_leaves_all_of_it_out(tmp_path: Path) -> None:
    assert said(tmp_path / "run", "no-attach") == {
        "looks": False,
        "folder": False,
        "ranks": [],
        "turn": False,
        "folder_in_the_end": False,
    }
