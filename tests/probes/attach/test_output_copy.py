"""What a captured program prints goes where it went before, and into a file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distprof_probes.attach import output_copy

START = """
import os, signal, sys
from pathlib import Path
from distprof_probes.attach.launch import run_program
command = [sys.executable, "-c", sys.argv[2]]
ending = run_program(
    sys.executable, command, os.environ, meanwhile=lambda: None, output=Path(sys.argv[1])
)
sys.exit(ending.exit.code if ending.exit.code is not None else 99)
"""


def run(tmp_path: Path, program: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", START, str(tmp_path / "output.log"), program]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, timeout=60, check=False, **streams)  # type: ignore[call-overload, no-any-return]


BOTH = (
    "import sys; print('out', flush=True); print('err', file=sys.stderr, flush=True); print('more')"
)


def test_streams_stay_apart_and_the_file_has_both(tmp_path):
    done = run(tmp_path, BOTH, capture_output=True)
    assert (done.stdout, done.stderr) == (b"out\nmore\n", b"err\n")
    assert sorted((tmp_path / "output.log").read_bytes().split()) == [b"err", b"more", b"out"]


def test_two_streams_into_one_file_keep_their_order(tmp_path):
    done = run(tmp_path, BOTH, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout == b"out\nerr\nmore\n"
    assert (tmp_path / "output.log").read_bytes() == done.stdout


def test_exit_codes_and_bytes_pass_unchanged(tmp_path):
    text = "import os, sys; os.write(1, bytes(range(256)) * 4096); sys.exit(7)"
    done = run(tmp_path, text, capture_output=True)
    assert done.returncode == 7
    assert done.stdout == bytes(range(256)) * 4096
    assert (tmp_path / "output.log").read_bytes() == done.stdout


def test_a_terminal_stays_one_of_the_same_size(tmp_path):
    outer, inner = pty.openpty()
    output_copy.fcntl.ioctl(
        inner, output_copy.termios.TIOCSWINSZ, output_copy.struct.pack("HHHH", 30, 77, 0, 0)
    )
    text = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size())"
    done = run(tmp_path, text, stdout=inner, stderr=inner)
    os.close(inner)
    assert done.returncode == 0
    assert os.read(outer, 1000) == b"True 77 30\r\n"
    os.close(outer)
    assert (tmp_path / "output.log").read_bytes() == b"True 77 30\n"


def test_a_reader_that_leaves_is_noticed_by_the_program(tmp_path):
    """As in ``capture … | head -1``."""
    reader, writer = os.pipe()
    text = "import sys\nwhile True:\n    print('y' * 1000, flush=True)"
    command = [sys.executable, "-c", START, str(tmp_path / "output.log"), text]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert os.read(reader, 10) == b"y" * 10
    os.close(reader)
    assert process.wait(30) != 0


def test_what_the_program_leaves_running_holds_nothing_up(tmp_path):
    text = "import subprocess; subprocess.Popen(['sleep', '30']); print('done')"
    begin = time.monotonic()
    done = run(tmp_path, text, capture_output=False, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    assert time.monotonic() - begin < 15
    assert b"done" in (tmp_path / "output.log").read_bytes()


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "output.log").mkdir()
    assert run(tmp_path, BOTH, capture_output=True).stdout == b"out\nmore\n"


def test_a_long_output_keeps_its_beginning_and_end(tmp_path, monkeypatch):
    monkeypatch.setattr(output_copy, "HEAD_BYTES", 10)
    monkeypatch.setattr(output_copy, "TAIL_BYTES", 8)
    (tmp_path / "output.log").touch()
    file = output_copy.BoundedFile(str(tmp_path / "output.log"))
    for part in (b"abcdef", b"ghijkl", b"mnop", b"qrst", b"uvwx"):
        file.write(part)
    file.close()
    assert (tmp_path / "output.log").read_bytes() == (
        b"abcdefghij\n[distprof left out 2 bytes here]\nmnopqrstuvwx"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_costs_the_copy_and_not_the_output(tmp_path):
    (tmp_path / "output.log").symlink_to("/dev/full")
    assert run(tmp_path, BOTH, capture_output=True).stdout == b"out\nmore\n"


def test_the_program_outlives_a_capture_that_is_killed(tmp_path):
    ready, done = tmp_path / "ready", tmp_path / "done"
    text = (
        "import time; from pathlib import Path\n"
        f"Path({str(ready)!r}).touch()\n"
        "for _ in range(20):\n    print('line' * 100, flush=True); time.sleep(0.1)\n"
        f"Path({str(done)!r}).touch()\n"
    )
    command = [sys.executable, "-c", START, str(tmp_path / "output.log"), text]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    while not ready.exists():
        time.sleep(0.01)
    process.kill()
    assert process.stdout is not None
    assert process.stdout.read().count(b"line" * 100) == 20  # until the copies end
    process.wait(30)
    process.stdout.close()
    assert done.exists()
    assert (tmp_path / "output.log").read_bytes().count(b"line" * 100) == 20


def test_signals_for_the_whole_group_lose_no_output(tmp_path):
    """As Ctrl-C does: the program's last words are passed on."""
    text = (
        "import signal, sys, time\n"
        "def end(*_): print('last words', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGINT, end); print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", START, str(tmp_path / "output.log"), text]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, 2)
    assert process.stdout.read() == b"last words\n"
    assert process.wait(30) == 5
    process.stdout.close()
    assert (tmp_path / "output.log").read_bytes() == b"ready\nlast words\n"
