"""What ``distprof attach --all-nodes`` asks of ranks through the run directory, and their answers.

``requests/ID.json`` is the request. Next to it, the folder ``requests/ID`` takes what the ranks
give: ``rank00003/trace.json.gz`` and similar files, laid out as in a run directory, and one file of
each node in ``replies/``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.artefacts import REPLY_SCHEMA, REQUEST_SCHEMA

__all__ = ["MAX_REPLY_BYTES", "MAX_REQUEST_BYTES", "RankReply", "ReplyFile", "RequestFile"]

MAX_REQUEST_BYTES = 2**20
"""A request that names 100,000 ranks takes less."""
MAX_REPLY_BYTES = 2**20


class RequestFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID.json``: one question to the ranks of a running job.

    Args:
        schema: ``distprof.request/1``.
        id: Name of the file without ``.json``, and of the folder for the answers.
        kind: What is asked for: a trace, the Python stacks, or the Flight Recorder.
        seconds: Duration of the trace; 0 for the others.
        ranks: The ranks that are asked, None for all.
        asked_ns: Time of the request, ns since the epoch.
        start_ns: When all ranks begin, ns since the epoch.
        deadline_ns: After this time no process waits for an answer, ns since the epoch.
        host: Host of the process that asks.
        pid: Its process id.
    """

    schema: str = REQUEST_SCHEMA
    id: str
    kind: Literal["profile", "stacks", "flight"]
    seconds: float = 0.0
    ranks: tuple[int, ...] | None = None
    asked_ns: int
    start_ns: int
    deadline_ns: int
    host: str = ""
    pid: int = 0


class RankReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one rank, as its node reports it.

    Args:
        rank: Global rank.
        state: ``accepted``: it will answer; ``done``: its answer is in its folder; ``failed``: it
            has none, for the reason in ``reason``.
        reason: Why there is no answer.
        letter: State of its process (as in ``ps``); empty if it is gone.
        began_ns: When it was asked, ns since the epoch by the clock of its node; None if not.
        num_bytes: Size of its answer.
    """

    rank: int
    state: Literal["accepted", "done", "failed"]
    reason: str = ""
    letter: str = ""
    began_ns: int | None = None
    num_bytes: int = 0


class ReplyFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID/replies/HOST-TOKEN.json``: what one node does about a request.

    Args:
        schema: ``distprof.reply/1``.
        id: The request.
        host: Host name of the node.
        refusal: Why the node does nothing about it; empty if it does.
        is_final: Whether nothing will be added.
        ranks: The ranks of the node that were asked.
    """

    schema: str = REPLY_SCHEMA
    id: str
    host: str
    refusal: str = ""
    is_final: bool = False
    ranks: tuple[RankReply, ...] = ()
