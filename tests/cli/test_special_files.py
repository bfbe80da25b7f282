"""Pipes, devices, links in a circle and folders, wherever the command line takes a file's name.

Each is answered with a sentence, within seconds and without memory; a limit ends what hangs.
"""

import os
import resource
import signal
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from distprof.cli import main

TRACE = str(
    Path(__file__).parents[1] / "golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"
)  # fmt: skip
LIMIT_S = 20
MAX_GROWTH_KIB = 300 << 10

READS = {
    "analyze": ["analyze", "{}"],
    "--with": ["analyze", TRACE, "--with", "{}"],
    "--config": ["analyze", TRACE, "--config", "{}"],
    "--fabric": ["analyze", TRACE, "--fabric", "{}"],
    "report": ["report", "{}"],
    "compare": ["compare", "{}", "{}"],
    "--baseline": ["check", TRACE, "--baseline", "{}"],
    "--from": ["scale", "--from", "{}"],
    "--lint": ["plan", "--lint", "{}", "--gpus", "8"],
    "fabric": ["fabric", "{}"],
    "hang": ["hang", "{}"],
    "history add": ["history", "add", "{}", "--history", "history"],
    "history show": ["history", "show", "--history", "{}"],
}
"""Arguments of the command line that name something to read."""


def fifo(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def circle(path):
    path.symlink_to(path)


def folder(path):
    path.mkdir()


def server(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


SPECIAL = (fifo, endless, circle, folder, server)


@contextmanager
def limited(seconds=LIMIT_S):
    """An error in place of a wait without end, in an ``open`` too."""

    def stop(*_):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_limit_ends_an_open_that_waits(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError), limited(0.2):
        (tmp_path / "pipe").open("rb")


@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", READS)
def test_what_is_no_file_is_refused_where_a_file_is_read(
    place, make, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x.json")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with limited():
        code = main([word.replace("{}", "x.json") for word in READS[place]])
    err = capsys.readouterr().err
    assert code in (2, 3)
    assert "x.json" in err
    assert "unexpected error" not in err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB


@pytest.mark.parametrize("make", [fifo, endless, server], ids=lambda make: make.__name__)
def test_a_folder_that_holds_it_and_no_trace_is_refused(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x.bin")
    with limited():
        assert main(["analyze", "."]) == 3
    assert "expected: " in capsys.readouterr().err


PLAN = ("plan", "--model", "llama2-7b", "--gpus", "8")


def test_a_result_is_not_written_to_a_pipe_without_a_reader(tmp_path, capsys):
    pipe = tmp_path / "out.json"
    os.mkfifo(pipe)
    with limited():
        assert main([*PLAN, "--force", "-o", str(pipe)]) == 3
    assert "a pipe without a reader" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_result_is_written_to_a_pipe_with_a_reader(tmp_path):
    pipe = tmp_path / "out.json"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")), daemon=True)
    with limited():
        reader.start()
        while main([*PLAN, "--force", "-o", str(pipe)]) == 3:  # until the reader has opened it
            pass
        reader.join()
    assert "distprof.plan/1" in read[0]


def test_a_full_device_is_named(capsys):
    with limited():
        assert main([*PLAN, "--force", "-o", "/dev/full"]) == 3
    assert "No space left on device" in capsys.readouterr().err


def test_a_pipe_with_a_writer_is_read_where_one_read_suffices(tmp_path, capsys):
    """As ``distprof fabric <(command)`` of a shell makes it; its writer may be slow."""
    log = Path(__file__).parents[1] / "golden/nccl-tests"
    sample = next(path for path in sorted(log.rglob("*.txt"))).read_bytes()
    reading, writing = os.pipe()

    def write():
        with os.fdopen(writing, "wb") as stream:
            stream.write(sample)

    later = threading.Timer(0.3, write)
    later.start()
    try:
        with limited():
            code = main(["fabric", f"/dev/fd/{reading}"])
    finally:
        later.join()
        os.close(reading)
    assert code == 0, capsys.readouterr().err
