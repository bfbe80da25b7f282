"""What was recorded is kept however a process ends; each in a process of its own, without torch."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROLOGUE = """
import ctypes, os, signal, sys, threading
from distprof_probes.attach import ending
ending.PATIENCE_S = 0.2
def finish(error):
    print("kept", type(error).__name__, flush=True)
"""


def _ends(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_at_exit() -> None:
    done = _ends("ending.when_it_ends(finish)")
    assert (done.stdout, done.stderr, done.returncode) == ("kept NoneType\n", "", 0)


def test_an_exception_is_shown_as_always_and_handed_over() -> None:
    done = _ends("ending.when_it_ends(finish)\nraise KeyError('x')")
    assert done.stdout == "kept KeyError\nkept KeyError\n"  # the hook, then at exit
    assert done.stderr.count("KeyError: 'x'") == 1
    assert done.returncode == 1


def test_an_exception_hook_of_the_programs_own_does_not_hide_it() -> None:
    code = """
        ending.when_it_ends(finish)
        sys.excepthook = lambda *_: print("theirs", flush=True)
        raise KeyError("x")
    """
    done = _ends(code)
    assert done.stdout == "theirs\nkept KeyError\n"


def test_sigterm_ends_the_process_by_that_signal_after_keeping() -> None:
    code = """
        ending.when_it_ends(finish)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(30)
    """
    done = _ends(code)
    assert done.stdout == "kept NoneType\n"
    assert done.returncode == -signal.SIGTERM


def test_sigterm_while_the_main_thread_is_stuck_outside_python() -> None:
    """As in a collective: Python's own handler would never run. Here it waits for a C mutex."""
    code = """
        ending.when_it_ends(finish)
        mutex = ctypes.create_string_buffer(64)
        library = ctypes.CDLL(None)
        library.pthread_mutex_lock(mutex)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        library.pthread_mutex_lock(mutex)
    """
    done = _ends(code)
    assert done.stdout == "kept NoneType\n"
    assert done.returncode == -signal.SIGTERM


def test_sigterm_while_keeping_lets_it_come_to_its_end() -> None:
    """A launcher terminates the other ranks while they still write what happened."""
    code = """
        def slowly(error):
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(0.5)
            finish(error)
        ending.when_it_ends(slowly)
        raise KeyError("x")
    """
    done = _ends(code)
    assert done.stdout == "kept KeyError\n"
    assert done.returncode == -signal.SIGTERM


def test_a_handler_of_the_programs_own_stays_in_force() -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: print("theirs", flush=True))
        ending.when_it_ends(finish)
        os.kill(os.getpid(), signal.SIGTERM)
        print("goes on", flush=True)
    """
    done = _ends(code)
    assert done.stdout == "theirs\ngoes on\nkept NoneType\n"
    assert done.returncode == 0


def test_a_handler_set_later_that_calls_the_one_before_decides_itself() -> None:
    code = """
        ending.when_it_ends(finish)
        before = signal.getsignal(signal.SIGTERM)
        def theirs(*args):
            before(*args)
            print("saved a checkpoint", flush=True)
            os._exit(9)
        signal.signal(signal.SIGTERM, theirs)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(30)
    """
    done = _ends(code)
    assert done.stdout == "kept NoneType\nsaved a checkpoint\n"
    assert done.returncode == 9


def test_a_child_of_multiprocessing_hands_its_exception_over() -> None:
    code = """
        import multiprocessing
        def child():
            ending.when_it_ends(finish)
            try:
                raise KeyError("x")
            except KeyError:
                sys.exit(1)  # as torch.multiprocessing does
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        print(process.exitcode)
    """
    done = _ends(code)
    assert done.stdout == "kept KeyError\n1\n"


def test_a_forked_process_that_is_terminated_ends_alone() -> None:
    """It inherits the file that wakes this process's watcher."""
    code = """
        ending.when_it_ends(finish)
        child = os.fork()
        if child == 0:
            threading.Event().wait(30)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        threading.Event().wait(3 * ending.PATIENCE_S)
        print("went on", flush=True)
    """
    done = _ends(code)
    assert done.stdout == "-15\nwent on\nkept NoneType\n"
    assert done.returncode == 0
