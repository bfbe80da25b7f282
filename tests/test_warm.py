"""What the tests' warm Python promises: imports are done before a process starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Starter, WarmPython

pytestmark = pytest.mark.distributed

NEEDED = ("torch.distributed.pipelining", "distprof_runs.launching.worker", "distprof.cli.analyze")


def test_a_process_finds_what_it_would_import(tmp_path: Path, started_warm: Starter) -> None:
    """Nothing else fails where they are missing: jobs only take three times as long."""
    script = tmp_path / "looks.py"
    script.write_text(f"import sys; print([name in sys.modules for name in {NEEDED}])")
    done = started_warm([sys.executable, str(script)], os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, True, True]\n"


def printed(start: Starter, text: str, **environment: str) -> str:
    done = start([sys.executable, "-c", text], {**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_is_a_child_of_the_one_that_asked_and_has_one_thread(
    started_warm: Starter,
) -> None:
    text = "import os; print(os.getppid(), len(os.listdir('/proc/self/task')))"
    assert printed(started_warm, text) == f"{os.getpid()} 1\n"


def test_what_it_starts_has_nothing_of_what_it_did(started_warm: Starter) -> None:
    """Neither its threads and the locks that they hold, nor its modules."""
    text = """
import multiprocessing, os, subprocess, sys, threading
import torch
torch.changed = True
held = threading.Lock()
threading.Thread(target=lambda: held.acquire() and threading.Event().wait(), daemon=True).start()
asks = "import torch, os, sys, threading; print(os.getppid(), hasattr(torch, 'changed'), end=' ')"
asks += "; print(threading.active_count(), 'distprof_runs.launching.worker' in sys.modules)"
done = subprocess.run([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True, check=True)
print(done.stdout == f"{os.getpid()} False 1 True\\n", done.stdout)
"""
    assert printed(started_warm, text).startswith("True ")


def test_sitecustomize_runs_before_and_sees_torch_being_imported(
    tmp_path: Path, started_warm: Starter
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; print('torch' in sys.modules); seen = []\n"
        "class Sees:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        seen.append(name)\n"
        "sys.meta_path.insert(0, Sees())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    text = "import sitecustomize, torch.nn; print(sitecustomize.seen, torch.ones(2).sum().item())"
    assert printed(started_warm, text, PYTHONPATH=path) == "False\n['torch'] 2.0\n"


def test_what_the_first_test_puts_on_the_path_is_new_to_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    warm = WarmPython()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    try:
        done = warm.run([sys.executable, "-c", "print('ran')"], env=os.environ, timeout_s=120)
    finally:
        warm.close()
    assert done.stdout == "customized\nran\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise ValueError('no')", 1),
        ("raise SystemExit('no')", 1),
        ("raise SystemExit(7)", 7),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_a_program_ends_as_in_a_new_python(
    end: str, code: int, started_warm: Starter, tmp_path: Path
) -> None:
    text = f"import atexit; atexit.register(print, 'after', flush=True); print('x')\n{end}"
    command = [sys.executable, "-c", text]
    cold = subprocess.run(command, capture_output=True, text=True, check=False)
    done = started_warm(command, os.environ)
    assert (done.returncode, done.stdout) == (cold.returncode, cold.stdout)
    assert done.returncode == code
    assert (done.stderr.splitlines() or [""])[-1] == (cold.stderr.splitlines() or [""])[-1]


def test_one_with_a_session_leads_it_as_soon_as_it_is_there(warm_python: WarmPython) -> None:
    """Else who signals the group of a child would signal its own."""
    command = [sys.executable, "-c", "input()"]
    for _ in range(5):
        with warm_python.popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
            assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
            os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL


def test_two_run_at_the_same_time(warm_python: WarmPython) -> None:
    text = "print(input(), flush=True)"
    pipe = subprocess.PIPE
    both = [
        warm_python.popen([sys.executable, "-c", text], stdin=pipe, stdout=pipe) for _ in range(2)
    ]
    assert [each.communicate("hello\n")[0] for each in reversed(both)] == ["hello\n"] * 2
