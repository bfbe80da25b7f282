"""Work for executors: top-level functions, so that they can be sent to another process."""

import os
import signal
import sys
import threading
import time

from distprof.ingest.cache import CacheKey, EntryWriter


def double(number):
    return 2 * number


def kind_of(item):
    return type(item).__name__


def refuse_odd(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def die_on_three(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_on_three_at_last(item):
    """The same, but not before the file says that all other results have arrived."""
    number, name = item
    while number == 3 and not os.path.exists(name):  # noqa: PTH110 - a path as it is sent
        time.sleep(0.05)
    return die_on_three(number)


def nap(seconds):
    time.sleep(seconds)


def unsendable_three(number):
    return (lambda: None) if number == 3 else number


MARKS = []


def marks():
    return MARKS


def process_id(_):
    return os.getpid()


def make_an_entry_for_ever(root, started):
    """Begin to write to a cache, say so by a file, and never come to an end."""
    with EntryWriter(root, CacheKey("0f")) as writer:
        writer.tables.write_rank(b"{}")
        started.touch()
        threading.Event().wait()


DIES_ONCE = ".dies"


def die_once(path):
    """The name; of one that says so, the first process that gets it dies."""
    if path.endswith(DIES_ONCE) and not os.path.exists(path):  # noqa: PTH110
        open(path, "w").close()  # noqa: PTH123
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def sleep_for_ever(_):
    time.sleep(3_600)


def die_within_a_message(number):
    """On three: send the start of a result and be killed, as by the OOM killer."""
    if number == 3:
        begin_a_message()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang_within_a_message(started):
    """Send the start of a result, say so by a file, and never come to an end."""
    begin_a_message()
    started.touch()
    threading.Event().wait()


def begin_a_message():
    """What a pool's worker does with a result, up to the middle; nobody else can send any more."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    results = frame.f_locals["result_queue"]
    results._wlock.acquire()
    os.write(results._writer.fileno(), b"\0\0\1\0half")


def die_if_told(item):
    """Its number; of thirty the process dies, again and not before all others have arrived."""
    number, mark, first = item
    if number == 30:
        if not os.path.exists(first):  # noqa: PTH110 - a path as it is sent
            open(first, "w").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists(mark):  # noqa: PTH110
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class UnsendableError(Exception):
    """Packs, and cannot be unpacked, as errors of many libraries."""

    def __init__(self, code, words):
        super().__init__(f"{code}: {words}")


def refuse_three(number):
    if number == 3:
        raise UnsendableError(403, "denied")
    return number
