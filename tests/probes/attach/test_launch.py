"""The user's program runs as if it had been typed alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from distprof_probes.attach.launch import check_program, shell_code

from distprof.artefacts.run_file import Exit
from distprof.errors import UsageError
from tests.processes import ended

RUNNER = """
import os, sys
from distprof_probes.attach.launch import run_program, shell_code
command = sys.argv[1:]
looks = []
ending = run_program(command[0], command, os.environ, meanwhile=lambda: looks.append(1))
print("ended", ending.exit.code, ending.exit.signal, list(ending.signals), bool(looks), flush=True)
sys.exit(shell_code(ending.exit))
"""


def _start(code: str) -> subprocess.Popen[str]:
    """``code`` in a Python that is started by the launcher, which is a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, sys.executable, "-u", "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_streams_and_exit_code_pass_through() -> None:
    code = "import sys; print(input()); print('err', file=sys.stderr); sys.exit(7)"
    with ended(_start(code)) as process:
        out, err = process.communicate("typed\n", timeout=60)
    assert out.splitlines()[0] == "typed"
    assert err == "err\n"
    assert process.returncode == 7


def test_a_signal_to_the_launcher_reaches_the_program_once() -> None:
    code = """
        import signal, time
        count = [0]
        def hear(*_): count[0] += 1; print("heard", flush=True)
        signal.signal(signal.SIGTERM, hear)
        print("ready", flush=True)
        while not count[0]: time.sleep(0.01)  # pause() misses a signal that came just before it
        time.sleep(0.3)
        print("count", count[0])
    """
    with ended(_start(code)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ["heard", "count 1", "ended 0  [15] True"]
    assert process.returncode == 0


def test_a_launcher_that_was_stopped_goes_on() -> None:
    """As after Ctrl-Z and fg."""
    code = """
        import sys
        print("ready", flush=True)
        sys.stdin.readline()
    """
    with ended(_start(code)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            process.send_signal(signal.SIGCONT)
        out, err = process.communicate("go\n", timeout=60)
    assert re.fullmatch(r"ended 0  \[(18(, 18)*)?\] True\n", out)  # SIGCONT is passed on
    assert err == ""


def test_a_program_killed_by_a_signal_gives_the_shells_code() -> None:
    with ended(_start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")) as process:
        out, _ = process.communicate(timeout=60)
    assert out.split()[:3] == ["ended", "None", "SIGKILL"]
    assert process.returncode == 137


def test_the_program_starts_with_no_signal_blocked_or_ignored() -> None:
    """As a shell would start it: Python itself ignores SIGPIPE, and the launcher blocks some."""
    code = r"""
        import re
        text = open("/proc/self/status").read()
        print(re.search(r"SigBlk:\s*(\w+)", text)[1].strip("0") or "none")
    """
    with ended(_start(code)) as process:
        out, _ = process.communicate(timeout=60)
    assert out.splitlines()[0] == "none"


@pytest.mark.parametrize("flag", ["-I", "-S", "-E", "-Es", "-uI"])
def test_a_python_that_would_ignore_the_hook_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="remove -"):
        check_program([sys.executable, flag, "train.py"])


@pytest.mark.parametrize("rest", [["-u", "train.py"], ["train.py", "-S"], ["-m", "train", "-I"]])
def test_flags_of_the_program_itself_are_none_of_pythons(rest: list[str]) -> None:
    assert check_program([sys.executable, *rest]) == sys.executable


def test_a_program_that_does_not_exist_is_a_wrong_usage() -> None:
    with pytest.raises(UsageError, match="program 'trian' not found"):
        check_program(["trian"])


def test_shell_codes() -> None:
    assert [shell_code(Exit(code=3)), shell_code(Exit(signal="SIGINT"))] == [3, 130]
