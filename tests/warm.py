"""A Python that has imported torch already, in which a job's processes start within milliseconds.

A process of a job spends three to five seconds of CPU time on imports, far more than on the few
steps that a test needs. :class:`WarmPython` starts one process that imports everything and then
only forks: a *stem*. Each process that it makes is a child of the one that asked, with its own
process identifier, session, environment, streams, signals and exit code; only the imports are
done. Such a process has a stem of its own, forked before its program began, for the Pythons that
the program starts: its ranks and ``distprof analyze`` among them. A stem has one thread and runs
nothing else, so no process inherits a lock that another thread held, nor what another program did.

``sitecustomize`` of a folder that ``PYTHONPATH`` names runs as in a new Python, and the program's
``import torch`` goes through the import system again, so ``distprof capture`` reaches the program
as ever. Emulated nodes are entered from here too. Nothing is warm where the start itself is tested
(launchers, signals, failures): there the fixture ``run_cold`` starts each Python anew.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import inspect
import io
import json
import multiprocessing.util
import os
import pkgutil
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["LIMIT_S", "Starter", "WarmPython"]

LIMIT_S = 300
Starter = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command in an environment to its end."""

_GIVE_UP_S = 20
_FAILED = 1
_SWITCHES = ("-P", "-S", "-u", "-B")
"""Of Python, those that a warm process can do without, or follow."""
_IN_A_NETWORK = ["ip", "netns", "exec"]
_PACKAGES = ("distprof", "distprof_probes", "distprof_runs")
_LOADED_BY_OTHERS = ("__main__", "integrations", "inject")
_LATE = (
    *("torch._dynamo", "torch.distributed.elastic.agent.server", "torch.distributed.optim"),
    *("torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks", "torch.distributed.debug"),
    *("torch.distributed.pipelining", "torch.profiler", "torch.distributed.tensor.parallel"),
    *("torch.distributed.run", "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend"),
    *("concurrent.futures.process", "isal.igzip_lib", "numpy.ma", "numpy.random"),
    *("pyarrow.parquet", "rich.console", "rich.table", "rich.markup", "rich.text"),
)
"""What our modules, and torch's launcher, import only once they need it."""
_WITHOUT_THREADS = {
    "OMP_NUM_THREADS": "1",  # as torch's launcher sets it; OpenBLAS reads it too
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's
}
_KINDS = ("net", "uts", "mnt")
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
"""Number of the system call; on other machines every process starts cold."""
_CLONE_PARENT = 0x8000
_PR_SET_PDEATHSIG = 1
_OUT_OF_THE_WAY = 600
"""File descriptors that arrive are kept above this one until they get their numbers."""

_ColdPopen = subprocess.Popen
_GIVEN = tuple(inspect.signature(_ColdPopen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


class _Stem:
    """The other side of a stem: asks it for processes.

    Args:
        asked: The socket on which it listens.
    """

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._one_at_a_time = threading.Lock()
        self._owner = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether its processes are children of this one, which may be a fork of its owner."""
        return os.getpid() == self._owner

    def start(self, files: Mapping[int, int], **request: Any) -> int:
        """Start a Python.

        Args:
            files: Number of a file in the new process to its number here.
            request: What :func:`_begin` takes; ``is_session``: it leads a session of its own.

        Returns:
            Its process identifier.
        """
        message = json.dumps({"files": list(files), **request}).encode()
        passed = array.array("i", files.values())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
        with self._one_at_a_time:
            self._asked.sendmsg([struct.pack("I", len(message))], rights)
            self._asked.sendall(message)
            (pid,) = struct.unpack("i", _read(self._asked, 4))
        return int(pid)

    def close(self) -> None:
        """End it."""
        self._asked.close()


_own_stem: _Stem | None = None


class _Popen(_ColdPopen):
    """Starts a Python as a fork of a stem, and any other program as ever."""

    stem: _Stem | None = None

    def _execute_child(self, *given: Any) -> None:
        told = dict(zip(_GIVEN, given, strict=True))
        stem = self.stem or _own_stem
        words = _words_of(told["args"])
        place = words.index(sys.executable) if sys.executable in words else -1
        is_entered = place > 0 and words[:3] == _IN_A_NETWORK
        is_fit = stem is not None and stem.is_ours and told["preexec_fn"] is None
        if not is_fit or not (place == 0 or is_entered) or not _is_known(words[place + 1 :]):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        with _namespaces(words[:place] if is_entered else []) as spaces:
            assert stem is not None
            self.pid = _started(stem, words[place + 1 :], told, spaces)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(told[end] for end in ends))  # type: ignore[attr-defined]


def _words_of(args: Any) -> list[str]:
    return [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else []


def _is_known(words: Sequence[str]) -> bool:
    """Whether these arguments of a Python are a program with switches that we can do without."""
    rest = [word for word in words if word not in _SWITCHES]
    return bool(rest) and (rest[0] in ("-m", "-c") or not rest[0].startswith("-"))


def _started(
    stem: _Stem, words: Sequence[str], told: Mapping[str, Any], spaces: Sequence[int]
) -> int:
    """Start what ``Popen`` was told, and return its process identifier."""
    streams = {0: told["p2cread"], 1: told["c2pwrite"], 2: told["errwrite"]}
    files = {number: number if here == -1 else here for number, here in streams.items()}
    entered = {_OUT_OF_THE_WAY - 1 - index: space for index, space in enumerate(spaces)}
    return stem.start(
        {**files, **{number: number for number in told["pass_fds"]}, **entered},
        words=list(words),
        env=_text(os.environ if told["env"] is None else told["env"]),
        cwd=os.fsdecode(told["cwd"] or Path.cwd()),
        spaces=list(entered),
        is_session=bool(told["start_new_session"]),
        blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    )


def _text(env: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def _posix_spawn(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], **options: Any) -> int:
    """In place of ``os.posix_spawn``."""
    words = _words_of(list(argv))
    fits = os.fsdecode(path) == sys.executable and _is_known(words[1:])
    if not fits or _own_stem is None or not _own_stem.is_ours:
        return _cold_posix_spawn(path, argv, env, **options)
    return _own_stem.start(
        {number: number for number in range(3)},
        words=words[1:],
        env=_text(env),
        cwd=str(Path.cwd()),
        blocked=[int(number) for number in options.get("setsigmask", ())],
    )


def _spawnv_passfds(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """In place of ``multiprocessing.util``'s, which starts what is spawned."""
    words = _words_of(list(args))
    fits = os.fsdecode(path) == sys.executable and _is_known(words[1:])
    if not fits or _own_stem is None or not _own_stem.is_ours:
        return _cold_spawnv_passfds(path, args, passfds)
    return _own_stem.start(
        {number: number for number in (0, 1, 2, *passfds)},
        words=words[1:],
        env=_text(os.environ),
        cwd=str(Path.cwd()),
    )


def _execvp(program: str, command: Sequence[str]) -> None:
    """In place of ``os.execvp``, which would lose the imports."""
    if program == sys.executable and _is_known(command[1:]):
        _take_numbers({})
        _run_as(list(command[1:]), dict(os.environ))
    _cold_execvp(program, command)


_cold_posix_spawn = os.posix_spawn
_cold_spawnv_passfds = multiprocessing.util.spawnv_passfds
_cold_execvp = os.execvp


@contextlib.contextmanager
def _namespaces(entering: Sequence[str]) -> Iterator[list[int]]:
    """Those of an emulated node: another process enters them first, and we follow it.

    Args:
        entering: The command that runs a program there, without the program; none: no node.
    """
    if not entering:
        yield []
        return
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


def _serve(asked: socket.socket) -> None:
    """Make the processes that the other side of the socket asks for, until it is closed."""
    while (received := _received(asked)) is not None:
        request, files = received
        leads, is_leader = os.pipe()
        pid = _cloned()
        if pid == 0:
            if request.pop("is_session", False):
                os.setsid()
            os.close(is_leader)
            _begin(files, **request)
        for here in (is_leader, *files.values()):
            os.close(here)
        os.read(leads, 1)  # until it leads its session: whoever asked may signal its group at once
        os.close(leads)
        asked.sendall(struct.pack("i", pid))


def _received(asked: socket.socket) -> tuple[dict[str, Any], dict[int, int]] | None:
    """The next request, and its files: their number in the new process to that here."""
    size, numbers, _, _ = socket.recv_fds(asked, 4, 64)
    if not size:
        return None
    (length,) = struct.unpack("I", size + _read(asked, 4 - len(size)))
    request = json.loads(_read(asked, length))
    return request, dict(zip(request.pop("files"), numbers, strict=True))


def _read(asked: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        part = asked.recv(length - len(found))
        if not part:
            raise ConnectionError("the warm Python has ended")
        found += part
    return found


def _cloned() -> int:
    """As ``os.fork``, but the new process is a child of this one's parent."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(_CLONE, _CLONE_PARENT, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _begin(
    files: Mapping[int, int],
    *,
    words: list[str],
    env: dict[str, str],
    cwd: str,
    spaces: Sequence[int] = (),
    blocked: Sequence[int] = (),
) -> NoReturn:
    """Become a Python with these arguments, in a process that was just forked.

    Args:
        files: Its number of each file to the present one.
        words: The arguments.
        env: The whole environment.
        cwd: The working directory.
        spaces: Which of the files are namespaces to enter.
        blocked: Signals that are blocked.
    """
    try:
        _take_numbers(files)
        for space in spaces:
            if _LIBC.setns(space, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        os.chdir(cwd)
        _forget_signals()
        _keep_a_stem()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _run_as(words, env)
    except BaseException as error:
        os.write(2, f"warm: {error!r}\n".encode())
    finally:
        os._exit(_FAILED)


def _take_numbers(files: Mapping[int, int]) -> None:
    """Give files their numbers; all others above the streams become the null device.

    Whoever started this process waits until its pipe is closed, and objects of the process that was
    forked still think of the numbers as theirs, and would write to, or close, what this one opens.
    """
    away = {
        number: fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
        for number, here in files.items()
    }
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != null and number not in away.values():
            with contextlib.suppress(OSError):  # that of the listing
                os.dup2(null, number, inheritable=False)
    for number, here in away.items():
        os.dup2(here, number)
        os.close(here)


def _forget_signals() -> None:
    """What Python finds when it starts."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError):  # some belong to the C library
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _keep_a_stem() -> None:
    """Fork one for what the program will start; it ends with this process."""
    global _own_stem
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        _serve(theirs)
        os._exit(0)
    theirs.close()
    _own_stem = _Stem(ours)


def _run_as(words: list[str], env: Mapping[str, str]) -> NoReturn:
    """Run a program in this process, to its end."""
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    new = [path for path in paths if path not in sys.path]
    os.environ.clear()
    os.environ.update(env)
    _open_streams(is_unbuffered=bool(env.get("PYTHONUNBUFFERED")) or "-u" in words[:1])
    sys.orig_argv = [sys.executable, *words]
    sys.path[:0] = new
    _customize(new)
    _exit(_code_of(lambda: _execute(words)))


def _open_streams(*, is_unbuffered: bool) -> None:
    """As Python opens them; its error stream is written line by line."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if is_unbuffered:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _customize(folders: Sequence[str]) -> None:
    """Run the ``sitecustomize`` in one of these folders, which may wait for torch."""
    if any(Path(folder, "sitecustomize.py").is_file() for folder in folders):
        sys.modules.pop("sitecustomize", None)
        sys.meta_path.insert(0, _TorchAgain(sys.modules.pop("torch")))
        importlib.import_module("sitecustomize")


class _TorchAgain:
    """Finds torch, which is in memory, when the program imports it.

    Args:
        torch: What was imported.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._spec = torch.__spec__

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system asks."""
        if name != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(self, self._torch), is_package=True)

    def is_imported(self) -> None:
        """What the import system has changed is put back, and this finder is not needed again."""
        self._torch.__spec__ = self._spec
        sys.meta_path.remove(self)


class _Loader:
    """Loads a module that is in memory."""

    def __init__(self, finder: _TorchAgain, module: ModuleType) -> None:
        self._finder, self._module = finder, module

    def create_module(self, spec: Any) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        self._finder.is_imported()


def _code_of(program: Callable[[], None]) -> int:
    """Run a program and return its exit code; it says on stderr why it is no good."""
    try:
        program()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return _FAILED
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else _FAILED
    return 0


def _exit(code: int) -> NoReturn:
    """End as Python does: threads, functions of ``atexit``, streams; a signal by that signal."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for each in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or nobody reads it
            each.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _execute(words: list[str]) -> None:
    """``FILE ARGUMENTS``, ``-m MODULE ARGUMENTS`` or ``-c TEXT ARGUMENTS``."""
    words, switches = [*words], set()
    while words[0] in _SWITCHES:
        switches.add(words.pop(0))
    how = words.pop(0) if words[0] in ("-m", "-c") else ""
    name, *arguments = words
    sys.argv = ["-c" if how == "-c" else name, *arguments]
    if "-P" not in switches:
        here = {"-m": str(Path.cwd()), "-c": ""}
        sys.path.insert(0, here.get(how, str(Path(name).resolve().parent)))
    if how == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif how == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(name, "<string>", "exec"), main.__dict__)
    else:
        runpy.run_path(name, run_name="__main__")


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


class WarmPython:
    """Runs Python command lines as processes that have their imports done."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stem: _Stem | None = None
        # not that of the first test, whose folders on the path would count as known already
        self._environment = {**os.environ, **_WITHOUT_THREADS}

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """As ``subprocess.Popen`` with text.

        Args:
            command: ``sys.executable`` and what it runs.
            options: Of ``Popen``.
        """
        if self._process is None and _CLONE is not None:
            self._begin()
        how = type("_PopenHere", (_Popen,), {"stem": self._stem})
        started: subprocess.Popen[str] = how(command, text=True, **options)
        return started

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=self._environment,
        )
        theirs.close()
        self._stem = _Stem(ours)

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` with text captured.

        Args:
            command: ``sys.executable`` and what it runs.
            env: The whole environment.
            timeout_s: Seconds; then the process is ended.

        Raises:
            subprocess.TimeoutExpired: If the command takes longer.
        """
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with self.popen(command, env=env, stdin=none, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except BaseException:
                process.terminate()  # first as a user would, so that it can end its ranks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_GIVE_UP_S)
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def close(self) -> None:
        """End the stem; processes that it has started go on."""
        if self._process is not None and self._stem is not None:
            self._stem.close()
            self._process.wait(_GIVE_UP_S)
            self._process = self._stem = None


def main() -> None:
    """Be the stem of the process that has started this one."""
    subprocess.Popen = _Popen  # type: ignore[misc]  # before torch keeps the name
    os.execvp = _execvp  # type: ignore[assignment]
    os.posix_spawn = _posix_spawn  # type: ignore[assignment]
    multiprocessing.util.spawnv_passfds = _spawnv_passfds
    _warm_up()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork may inherit a lock of another one"
    gc.freeze()  # forks share these pages, and their collections need not go through them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal is meant for the tests
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
