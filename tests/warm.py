"""A Python that has imported torch already, in which a job's processes start within milliseconds.

A process of a job spends three to five seconds of CPU time on imports, far more than on the few
steps that a test needs. :class:`WarmPython` starts one process that imports everything; each
command then runs in a fork of it, and so does each Python that the command starts, its ranks and
``distprof analyze`` among them. They are processes of their own as ever, with their own process
identifier, session, environment, streams, signals and exit code; only the imports are done.

Emulated nodes are entered from here too. Nothing is warm where the start itself is tested
(launchers, signals, failures): there the fixture ``run_cold`` starts each Python anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

__all__ = ["LIMIT_S", "Starter", "WarmPython"]

LIMIT_S = 400
Starter = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command in an environment to its end."""

_ColdPopen = subprocess.Popen
_FAILED = 1
_IN_A_NETWORK = ["ip", "netns", "exec"]
_DISTPROF = ["-m", "distprof"]
_PACKAGES = ("distprof", "distprof_probes", "distprof_runs")
_LOADED_BY_OTHERS = ("__main__", "integrations", "inject")
_LATE = (
    *("torch._dynamo", "torch.distributed.elastic.agent.server", "torch.distributed.optim"),
    *("torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks", "torch.distributed.debug"),
    *("torch.distributed.pipelining", "torch.profiler", "torch.distributed.tensor.parallel"),
    *("concurrent.futures.process", "isal.igzip_lib", "numpy.ma", "numpy.random"),
    *("pyarrow.parquet", "rich.console", "rich.table", "rich.markup", "rich.text"),
)
"""What our modules import only once they need it."""
_KINDS = ("net", "uts", "mnt")
_LIBC = ctypes.CDLL(None, use_errno=True)


class WarmPython:
    """Runs Python command lines, one after the other, as forks of a process that is warm."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` with text captured.

        Args:
            command: ``sys.executable`` and what it runs.
            env: The whole environment.
            timeout_s: Seconds; then the process and this one are given up.

        Raises:
            subprocess.TimeoutExpired: If the command takes longer.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # as torch's launcher sets it
            )
        timer = threading.Timer(timeout_s, self._process.terminate)
        timer.start()
        try:
            answer = _asked(
                self._process, command=list(command), env=dict(env), cwd=str(Path.cwd())
            )
        finally:
            timer.cancel()
        if not answer:
            self.close()
            raise subprocess.TimeoutExpired(list(command), timeout_s)
        return subprocess.CompletedProcess(command, **json.loads(answer))

    def close(self) -> None:
        """End the warm process, and with it what it still runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None


def _asked(process: subprocess.Popen[str], **request: Any) -> str:
    """A line for a line; empty when the other side is gone."""
    asked, answers = process.stdin, process.stdout
    assert asked is not None
    assert answers is not None
    asked.write(json.dumps(request) + "\n")
    asked.flush()
    return answers.readline()


class _Popen(_ColdPopen):
    """Starts a Python as a fork of this process, and any other program as ever."""

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        words = list(args) if isinstance(args, (list, tuple)) else []
        place = words.index(sys.executable) if sys.executable in words else -1
        if place == 0:
            super().__init__(args, *rest, **options, preexec_fn=_becoming(words, options))
        elif place > 0 and words[:3] == _IN_A_NETWORK and words[place + 1 :][:2] == _DISTPROF:
            with _namespaces(words[:place]) as spaces:
                become = _becoming(words[place:], options, spaces)
                super().__init__(args, *rest, **options, preexec_fn=become)
        else:
            super().__init__(args, *rest, **options)


def _becoming(
    words: list[str], options: Mapping[str, Any], spaces: Sequence[int] = ()
) -> Callable[[], NoReturn]:
    """What a process does as soon as it is forked, instead of becoming another program."""
    env = options.get("env")
    environment = dict(os.environ if env is None else env)
    kept = sorted(options.get("pass_fds", ()))

    def become() -> NoReturn:
        folder = Path.cwd()
        for space in spaces:
            if _LIBC.setns(space, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        if spaces:
            os.chdir(folder)  # a file system that is entered is entered at its root
        _become(words[1:], environment, kept)

    return become


@contextlib.contextmanager
def _namespaces(entering: Sequence[str]) -> Iterator[list[int]]:
    """Those of an emulated node: another process enters them first, and we follow it.

    Args:
        entering: The command that runs a program there, without the program.
    """
    waits = [*entering, "sh", "-c", "echo here; exec cat"]
    with _ColdPopen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as there:
        assert there.stdout is not None
        assert there.stdout.readline() == b"here\n"
        spaces = [os.open(f"/proc/{there.pid}/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
        try:
            yield spaces
        finally:
            for space in spaces:
                os.close(space)


def _become(words: list[str], env: dict[str, str], kept: Sequence[int]) -> NoReturn:
    """What a Python with these arguments does, in a process that was just forked."""
    code = _FAILED
    try:
        _close_all_but(kept)
        _forget_signals()
        os.environ.clear()
        os.environ.update(env)
        for stream, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            mode = "r" if number == 0 else "w"
            setattr(sys, stream, open(number, mode, closefd=False))  # noqa: SIM115
        code = _leaving(lambda: _execute(words))
    finally:
        for each in (sys.stdout, sys.stderr):
            each.flush()
        os._exit(code)


def _leaving(program: Callable[[], None]) -> int:
    """The exit code of a program, which says on stderr why it is no good."""
    try:
        program()
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
            return _FAILED
        return leaving.code or 0
    except BaseException:
        traceback.print_exc()
        return _FAILED
    return 0


def _execute(words: list[str]) -> None:
    """``FILE ARGUMENTS`` or ``-m MODULE ARGUMENTS``; switches before matter at the start only."""
    words, switches = [*words], set()
    while words[0] in ("-P", "-S", "-u"):
        switches.add(words.pop(0))
    is_module = words[0] == "-m"
    name, *arguments = words[is_module:]
    sys.argv = [name, *arguments]
    if "-P" not in switches:
        sys.path.insert(0, str(Path.cwd() if is_module else Path(name).parent))
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def _execvp(program: str, command: Sequence[str]) -> None:
    """In place of ``os.execvp``, which would lose the imports."""
    if program == sys.executable:
        _become(list(command[1:]), dict(os.environ), ())
    _cold_execvp(program, command)


_cold_execvp = os.execvp


def _close_all_but(kept: Sequence[int]) -> None:
    """All above the three streams: whoever started this process waits until its pipe is closed.

    Their numbers stay taken, by the null device: objects of the process that was forked still think
    of them as theirs, and would write to, or close, what this one opens.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in (null, *kept):
            with contextlib.suppress(OSError):  # that of the listing
                os.dup2(null, number, inheritable=False)


def _forget_signals() -> None:
    """What Python finds when it starts."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _warm_up() -> None:
    """Import what launchers, ranks and reports import, also where they do so late."""
    for package in _PACKAGES:
        for name in _modules_of(importlib.import_module(package)):
            importlib.import_module(name)
    for name in _LATE:
        importlib.import_module(name)


def _modules_of(package: ModuleType) -> Iterator[str]:
    """All modules below a package but those that other programs load, or that run when loaded."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.rpartition(".")[2] in _LOADED_BY_OTHERS:
            continue
        yield found.name
        if found.ispkg:
            yield from _modules_of(importlib.import_module(found.name))


def _serve(requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        request = json.loads(line)
        done = subprocess.run(
            request["command"],
            env=request["env"],
            cwd=request["cwd"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        answer = {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve until nobody asks any more."""
    subprocess.Popen = _Popen  # type: ignore[misc]  # before torch keeps the name
    os.execvp = _execvp  # type: ignore[assignment]
    _warm_up()
    gc.freeze()  # forks share these pages, and their collections need not go through them
    _serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
