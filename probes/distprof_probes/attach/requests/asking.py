"""Asks the ranks of all nodes through the run directory, and waits for their answers.

All ranks begin at one time of the wall clock, a few seconds ahead. A step number would need the
training thread of each rank to act on it, which a hung job cannot do. The clocks of a cluster
differ by far less than the length of a trace, and an analysis aligns them by the collectives
anyway.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from distprof.artefacts import (
    FLIGHT_FILE,
    RANK_DIR_FORMAT,
    REPLIES_DIR,
    REQUESTS_DIR,
    STACKS_FILE,
)
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import MAX_REPLY_BYTES, RankReply, ReplyFile, RequestFile
from distprof.bounds import read_plain
from distprof.errors import InputError, UsageError
from distprof_probes.attach.actions import (
    Answers,
    description_of_profile,
    num_entries,
    of_training,
    write,
)
from distprof_probes.attach.questions import EXPORT_WITHIN_S, FLIGHT_WITHIN_S, STACKS_WITHIN_S
from distprof_probes.attach.ranks import LivingRank, look
from distprof_probes.attach.replica import MAX_RANK
from distprof_probes.attach.requests.inbox import REQUEST_NAME, RefusedError, read_request
from distprof_probes.attach.stacks import Stack
from distprof_probes.job.directory import new_run_directory, write_run_file
from distprof_probes.job.process import ProcessState

NOTICE_S = 5.0
"""From a request to the start of a trace: more than the longest time between two checks."""
_TAKEOVER_S = 10.0
"""Additional time for a silent node, whose polling rank may be gone until another takes over."""
_MARGIN_S = 5.0
_LOOK_S = 0.25
_MAX_ANSWER_BYTES = 2**30
_NO_ANSWER = "its node took the request and gave no answer"

_WITHIN_S = {"profile": EXPORT_WITHIN_S, "stacks": STACKS_WITHIN_S, "flight": FLIGHT_WITHIN_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a request."""

    asked: int  # Ranks that may answer.
    seen: int  # Those whose node has seen the request.
    answered: int  # Those that have answered, or given a reason why not.
    starts_in_s: float  # Seconds until they begin; negative once they have begun.
    is_over: bool  # Whether no more answers are awaited.


@dataclass(slots=True)
class _Replies:
    """The answers of the nodes so far."""

    folder: Path  # The folder in which they write.
    ranks: dict[int, RankReply] = field(default_factory=dict)  # Rank to its latest reply.
    # Host to the reason why its node does nothing.
    refusals: dict[str, str] = field(default_factory=dict)
    _final: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Read the files of nodes whose reply is not final yet."""
        with contextlib.suppress(OSError):
            for file in list(self.folder.glob("*.json")):
                if file.name not in self._final:
                    self._read(file)

    def _read(self, file: Path) -> None:
        try:
            reply = msgspec.json.decode(read_plain(file, MAX_REPLY_BYTES), type=ReplyFile)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if reply.is_final:
            self._final.add(file.name)
        if reply.refusal:
            self.refusals[reply.host] = reply.refusal
        self.ranks.update({each.rank: each for each in reply.ranks})


class RanksEverywhere:
    """The ranks of all nodes, queried through the run directory.

    Args:
        run_dir: The run directory of the job, as this host sees it.
        ranks: The ranks to query.
        chosen: Whether they are only a part of the job's ranks.
        notice_s: Seconds until a trace begins.
        tell: Called periodically with the progress while answers are awaited.
    """

    is_everywhere = True

    def __init__(
        self,
        run_dir: Path,
        ranks: Sequence[LivingRank],
        *,
        chosen: bool = False,
        notice_s: float = NOTICE_S,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        # As given; after an answer, with the state of processes on other hosts.
        self.ranks = list(ranks)
        self.is_reached = False  # Whether a rank has answered.
        # Ranks of the job that have no folder in the run directory.
        self.absent_ranks = () if chosen else _absent(ranks)
        self.unseen_hosts: list[str] = []  # Hosts that have not seen the latest request.
        # Time between the first and the last rank that began, by the clocks of their nodes; None
        # without answers.
        self.spread_s: float | None = None
        self._run_dir = run_dir
        self._chosen = chosen
        self._notice_s = notice_s
        self._tell = tell
        self._start_ns = 0
        self._keep = False

    def stacks(self, *, save: bool) -> Answers[Stack]:
        """As of :class:`~distprof_probes.attach.actions.RanksHere`, from all nodes."""
        with self._asked("stacks") as (folder, answers):
            texts = {
                rank: _read(folder, rank, STACKS_FILE).decode("utf-8", "replace")
                for rank in answers.given
            }
        for rank in self.ranks:
            if save and rank.rank in texts:
                write(rank.folder / STACKS_FILE, texts[rank.rank].encode())
        return of_training(Answers(given=texts, missing=answers.missing))

    def flight(self) -> Answers[int]:
        """As of :class:`~distprof_probes.attach.actions.RanksHere`, from all nodes."""
        sizes = {}
        with self._asked("flight") as (folder, answers):
            for rank in self.ranks:
                if rank.rank in answers.given:
                    dump = _read(folder, rank.rank, FLIGHT_FILE)
                    sizes[rank.rank] = num_entries(dump)
                    write(rank.folder / FLIGHT_FILE, dump)
        return Answers(given=sizes, missing=answers.missing)

    def profile(self, seconds: float, out: Path | None) -> tuple[Path, Answers[int]]:
        """Trace all ranks at one time, by default into the directory of the requests.

        Returns the new directory, and the size of each trace in bytes.
        """
        target = None if out is None else new_run_directory(out, "profile")
        with self._asked("profile", seconds) as (folder, answers):
            _keep_traced(folder, set(answers.given))
            run = description_of_profile(self._run_dir, seconds, self._start_ns)
            lost = [f"Rank {rank} was not traced: {why}." for rank, why in answers.missing.items()]
            write_run_file(folder, msgspec.structs.replace(run, notes=(*run.notes, *lost[:100])))
            if target is not None:
                _move(folder, target)
            self._keep = bool(answers.given) and target is None
        return target or folder, answers

    @contextmanager
    def _asked(
        self, kind: Literal["profile", "stacks", "flight"], seconds: float = 0.0
    ) -> Iterator[tuple[Path, Answers[int]]]:
        """Post the request, wait, and always withdraw it. Traces stay."""
        request = self._request(kind, seconds)
        folder = self._post(request)
        self._keep = False
        try:
            replies = self._wait(request, folder)
            yield folder, self._answers(replies)
        finally:
            folder.with_suffix(".json").unlink(missing_ok=True)
            shutil.rmtree(folder / REPLIES_DIR if self._keep else folder, ignore_errors=True)

    def _request(self, kind: Literal["profile", "stacks", "flight"], seconds: float) -> RequestFile:
        now_ns = time.time_ns()
        lead_s = self._notice_s if kind == "profile" else 0.0
        within_s = self._notice_s + _TAKEOVER_S + seconds + _WITHIN_S[kind] + _MARGIN_S
        self._start_ns = now_ns + round(lead_s * 1e9)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return RequestFile(
            id=f"{kind}-{stamp}-{secrets.token_hex(4)}",
            kind=kind,
            seconds=seconds,
            ranks=tuple(rank.rank for rank in self.ranks) if self._chosen else None,
            asked_ns=now_ns,
            start_ns=self._start_ns,
            deadline_ns=now_ns + round(within_s * 1e9),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def _post(self, request: RequestFile) -> Path:
        """Write the request; its folder first, because ranks answer at once."""
        place = self._run_dir / REQUESTS_DIR
        folder, file = place / request.id, place / f"{request.id}.json"
        try:
            if not place.is_dir():
                place.mkdir(mode=0o700)
                _hand_over([place], to=self._run_dir)
            _check_free(place)
            folder.mkdir(mode=0o700)
            (folder / REPLIES_DIR).mkdir(mode=0o700)
            draft = folder / file.name
            write_atomically(draft, msgspec.json.encode(request), mode=0o600)
            _hand_over([folder, folder / REPLIES_DIR, draft], to=place)
            draft.rename(file)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise InputError(
                str(place),
                expected="a folder in which this user can ask the ranks of the job",
                found=error.strerror or str(error),
                fix="ask as the user who runs the job, on a host that can write to DIR",
            ) from error
        return folder

    def _wait(self, request: RequestFile, folder: Path) -> _Replies:
        """Wait until all ranks that may answer have, or no more answers can come."""
        replies = _Replies(folder / REPLIES_DIR)
        may_answer = {rank.rank for rank in self.ranks if _may_answer(rank)}
        patience_ns = request.asked_ns + round((self._notice_s + _TAKEOVER_S) * 1e9)
        is_over = False
        while not is_over:
            replies.read()
            seen = may_answer & replies.ranks.keys()
            answered = {rank for rank in seen if replies.ranks[rank].state != "accepted"}
            refused = {
                rank.rank for rank in self.ranks if rank.host in replies.refusals
            } & may_answer - seen
            now_ns = time.time_ns()
            awaited = seen | refused if now_ns > patience_ns else may_answer
            is_over = answered | refused == awaited or now_ns > request.deadline_ns
            self._tell(
                Progress(
                    asked=len(may_answer),
                    seen=len(seen),
                    answered=len(answered),
                    starts_in_s=(request.start_ns - now_ns) / 1e9,
                    is_over=is_over,
                )
            )
            if not is_over:
                time.sleep(_LOOK_S)
        return replies

    def _answers(self, replies: _Replies) -> Answers[int]:
        """Which ranks answered, and why the others did not."""
        given, missing, unseen = {}, {}, dict[str, None]()
        self._look_again(replies)
        for place, rank in enumerate(self.ranks):
            reply = replies.ranks.get(rank.rank)
            self.ranks[place] = _with_process(rank, reply)
            if reply is not None and reply.state == "done":
                given[rank.rank] = reply.num_bytes
                continue
            missing[rank.rank] = self._why_missing(rank, reply, replies)
            if reply is None and _may_answer(rank) and rank.host not in replies.refusals:
                unseen[rank.host] = None
        self.unseen_hosts = list(unseen)
        self.is_reached = self.is_reached or bool(given)
        begun = [replies.ranks[rank].began_ns for rank in given]
        times = [began_ns for began_ns in begun if began_ns is not None]
        self.spread_s = (max(times) - min(times)) / 1e9 if times else None
        return Answers(given=given, missing=missing)

    def _look_again(self, replies: _Replies) -> None:
        """Ranks that were not seen may have ended in the meantime."""
        silent = {rank.rank for rank in self.ranks if rank.rank not in replies.ranks}
        now = {rank.rank: rank for rank in look(self._run_dir, only=silent)}
        self.ranks = [now.get(rank.rank, rank) for rank in self.ranks]

    def _why_missing(self, rank: LivingRank, reply: RankReply | None, replies: _Replies) -> str:
        if reply is not None:
            place = f" on {rank.host}" if reply.letter in ("T", "t") and not rank.is_here else ""
            return f"{reply.reason or _NO_ANSWER}{place}"
        if rank.has_ended or (rank.is_here and not rank.can_be_asked):
            return rank.why_silent
        if not rank.takes_requests:
            return rank.why_not or "its probes are of an older version and take no requests"
        if rank.host in replies.refusals:
            return f"its node refused: {replies.refusals[rank.host]}"
        return f"{rank.host} has not seen the request"


def _absent(ranks: Sequence[LivingRank]) -> Sequence[int]:
    """Ranks of the job that have no folder, if the others recorded its size."""
    there = {rank.rank for rank in ranks}
    size = max((rank.world_size or 0 for rank in ranks), default=0)
    return [rank for rank in range(min(size, MAX_RANK)) if rank not in there]


def _may_answer(rank: LivingRank) -> bool:
    """Whether to wait for an answer. The node of a stopped rank answers on its behalf."""
    is_gone = rank.is_here and rank.process is None
    return rank.takes_requests and not rank.has_ended and not is_gone


def _with_process(rank: LivingRank, reply: RankReply | None) -> LivingRank:
    """The rank with the state of its process, if its node reports it."""
    if rank.is_here or reply is None or not reply.letter:
        return rank
    return replace(rank, process=ProcessState(letter=reply.letter, cpu_s=0.0, started_ticks=0))


def _check_free(place: Path) -> None:
    """Refuse while another request is being served, and remove finished requests."""
    for file in place.glob("*.json"):
        if not REQUEST_NAME.fullmatch(file.stem):
            continue
        try:
            other = read_request(file)
        except RefusedError:  # finished, or no rank obeys it
            file.unlink(missing_ok=True)
            continue
        except OSError:
            continue
        left_s = max((other.deadline_ns - time.time_ns()) / 1e9, 0.0)
        raise UsageError(
            f"another request is being served ({other.id}, from process {other.pid} on"
            f" {other.host}): wait until it is done, {left_s:.0f} s at most, or remove {file}"
        )


def _hand_over(folders: Sequence[Path], *, to: Path) -> None:
    """Give files that root makes to the user of the job, whose ranks answer."""
    if os.geteuid() == 0:
        owner = to.stat()
        for folder in folders:
            os.chown(folder, owner.st_uid, owner.st_gid)


def _keep_traced(folder: Path, traced: set[int]) -> None:
    """Remove the folders of ranks that gave no trace."""
    names = {RANK_DIR_FORMAT.format(rank=rank) for rank in traced}
    for each in folder.iterdir():
        if each.name.startswith("rank") and each.name not in names:
            shutil.rmtree(each, ignore_errors=True)


def _move(folder: Path, target: Path) -> None:
    for each in folder.iterdir():
        if each.name != REPLIES_DIR:
            shutil.move(each, target / each.name)


def _read(folder: Path, rank: int, name: str) -> bytes:
    file = folder / RANK_DIR_FORMAT.format(rank=rank) / name
    try:
        return read_plain(file, _MAX_ANSWER_BYTES)
    except OSError as error:
        raise InputError(
            str(file),
            expected="the answer of the rank",
            found=error.strerror or str(error),
            fix="ask again",
        ) from error
