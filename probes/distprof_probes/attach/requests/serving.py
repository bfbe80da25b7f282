"""Serves one request in one rank: queries the ranks of its node, and writes their answers.

Nothing here waits for another node, and every thread is a daemon, so an ending rank waits for none.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from distprof.artefacts import (
    FLIGHT_FILE,
    RANK_DIR_FORMAT,
    REQUESTS_DIR,
    STACKS_FILE,
    TRACE_FILE,
)
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import RankReply, ReplyFile, RequestFile
from distprof_probes.attach import questions
from distprof_probes.attach.client import NoAnswer
from distprof_probes.attach.ranks import LivingRank, look
from distprof_probes.attach.requests.inbox import is_our_folder, replies_folder
from distprof_probes.attach.sockets import local_ranks
from distprof_probes.own_files import OwnFile

_SLICE_S = 0.2
_MOST_AT_ONCE = 64
_UNSAFE = str.maketrans({"/": "_", "\0": "_"})


def refuse(run_dir: Path, request: str, why: str) -> None:
    """Answer that this node refuses a request, if the answer can be written safely."""
    reply = ReplyFile(id=request, host=socket.gethostname(), refusal=why, is_final=True)
    _Answer(run_dir, request).write(reply)


class _Answer:
    """The reply of this node to one request, lost if it cannot be written."""

    def __init__(self, run_dir: Path, request: str) -> None:
        self._folder = replies_folder(run_dir, request)
        host = socket.gethostname().translate(_UNSAFE)[:100]
        self._file = self._folder / f"{host}-{secrets.token_hex(4)}.json"

    def write(self, reply: ReplyFile) -> None:
        if is_our_folder(self._folder.parent) and is_our_folder(self._folder):
            with contextlib.suppress(OSError):
                write_atomically(self._file, msgspec.json.encode(reply), mode=0o600)


class Serving(threading.Thread):
    """The thread that serves one request, which has passed all checks.

    ``ended`` is set when the probes of this rank end.
    """

    def __init__(self, run_dir: Path, request: RequestFile, ended: threading.Event) -> None:
        super().__init__(name="distprof-request", daemon=True)
        self.request = request
        self._run_dir = run_dir
        self._folder = run_dir / REQUESTS_DIR / request.id
        self._ended = ended
        self._answer = _Answer(run_dir, request.id)
        self._replies: dict[int, RankReply] = {}
        self._has_begun = False
        self._gives_way = False

    @property
    def is_busy(self) -> bool:
        """Whether it keeps the node from serving another request. False if withdrawn in time."""
        self._gives_way = not self._has_begun and self._is_withdrawn()
        return self.is_alive() and not self._gives_way

    def run(self) -> None:
        """Serve it. Errors are reported to the requester and never reach training."""
        with contextlib.suppress(Exception):
            self._serve()

    def _serve(self) -> None:
        able = self._claimed()
        if not self._replies:
            return  # no rank here is queried, or another rank of this node queries them
        self._report()
        if able and self._waited_for_start():
            self._ask(able)
        self._report(is_final=True)

    def _claimed(self) -> list[LivingRank]:
        """The ranks of this node that the request is for and that no other rank has claimed."""
        if not is_our_folder(self._folder):
            return []
        wanted, able = self.request.ranks, []
        here = local_ranks(self._run_dir)
        asked = here if wanted is None else here.intersection(wanted)
        for rank in look(self._run_dir, at_steps=False, only=asked):
            if not rank.is_here or not self._claim(rank.rank):
                continue
            letter = rank.process.letter if rank.process else ""
            if rank.can_be_asked:
                reply = RankReply(rank=rank.rank, state="accepted", letter=letter)
                able.append(rank)
            else:
                reply = RankReply(
                    rank=rank.rank, state="failed", reason=rank.why_silent, letter=letter
                )
            self._replies[rank.rank] = reply
        return able

    def _claim(self, rank: int) -> bool:
        """Make the folder for its answer. The process that makes it queries the rank."""
        try:
            self._place(rank).mkdir(mode=0o777)
        except OSError:
            return False
        return True

    def _place(self, rank: int) -> Path:
        return self._folder / RANK_DIR_FORMAT.format(rank=rank)

    def _waited_for_start(self) -> bool:
        """Wait until all ranks begin; False if the request was withdrawn or this rank ends."""
        while (left_s := (self.request.start_ns - time.time_ns()) / 1e9) > 0:
            if self._ended.wait(min(left_s, _SLICE_S)) or self._gives_way:
                return False
        self._has_begun = True
        return not (self._gives_way or self._is_withdrawn())

    def _is_withdrawn(self) -> bool:
        try:
            OwnFile(self._folder.with_suffix(".json"), os.O_RDONLY | os.O_NOFOLLOW).close()
        except OSError:
            return True
        return False

    def _ask(self, ranks: Sequence[LivingRank]) -> None:
        """Query all at once, and report each answer. An unresponsive rank holds up no other."""
        answers: queue.SimpleQueue[RankReply] = queue.SimpleQueue()
        turns = threading.Semaphore(_MOST_AT_ONCE)
        for rank in ranks:
            work = partial(self._ask_one, rank, turns, answers)
            threading.Thread(target=work, name="distprof-ask", daemon=True).start()
        missing = {rank.rank for rank in ranks}
        while missing and not self._ended.is_set():
            left_s = (self.request.deadline_ns - time.time_ns()) / 1e9
            if left_s <= 0:
                break
            with contextlib.suppress(queue.Empty):
                reply = answers.get(timeout=min(left_s, _SLICE_S))
                self._replies[reply.rank] = reply
                missing.discard(reply.rank)
                self._report()
        self._give_up(missing)

    def _give_up(self, missing: set[int]) -> None:
        ended = self._ended.is_set()
        why = "the rank that asks for its node has ended" if ended else "no answer in time"
        for rank in missing:
            self._replies[rank] = msgspec.structs.replace(
                self._replies[rank], state="failed", reason=why
            )

    def _ask_one(
        self, rank: LivingRank, turns: threading.Semaphore, answers: queue.SimpleQueue[RankReply]
    ) -> None:
        letter = self._replies[rank.rank].letter
        began_ns = time.time_ns()
        reply = partial(RankReply, rank=rank.rank, letter=letter, began_ns=began_ns)
        try:
            with turns:
                num_bytes = _GIVEN[self.request.kind](rank, self.request, self._place(rank.rank))
        except NoAnswer as none:
            answers.put(reply(state="failed", reason=str(none)))
        except OSError as error:
            why = f"its answer cannot be written: {error.strerror or error}"
            answers.put(reply(state="failed", reason=why))
        except Exception as error:
            why = f"it cannot be asked: {type(error).__name__}: {error}"[:300]
            answers.put(reply(state="failed", reason=why))
        else:
            answers.put(reply(state="done", num_bytes=num_bytes))

    def _report(self, *, is_final: bool = False) -> None:
        ranks = tuple(self._replies[rank] for rank in sorted(self._replies))
        host = socket.gethostname()
        reply = ReplyFile(id=self.request.id, host=host, ranks=ranks, is_final=is_final)
        self._answer.write(reply)


def _trace(rank: LivingRank, request: RequestFile, folder: Path) -> int:
    """A trace, and next to it the other files that an analysis reads."""
    size = questions.trace(rank, request.seconds, folder / TRACE_FILE)
    questions.keep_neighbours(rank, folder)
    return size


def _stacks(rank: LivingRank, request: RequestFile, folder: Path) -> int:  # noqa: ARG001
    text = questions.stacks(rank).encode()
    write_atomically(folder / STACKS_FILE, text)
    return len(text)


def _flight(rank: LivingRank, request: RequestFile, folder: Path) -> int:  # noqa: ARG001
    dump = questions.flight(rank)
    write_atomically(folder / FLIGHT_FILE, dump)
    return len(dump)


_GIVEN: dict[str, Callable[[LivingRank, RequestFile, Path], int]] = {
    "profile": _trace,
    "stacks": _stacks,
    "flight": _flight,
}
