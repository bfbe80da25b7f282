"""Requests of ``distprof attach --all-nodes`` to ranks through the run directory, and the answers.

``requests/ID.json`` is the request. The folder ``requests/ID`` next to it receives the answers of
the ranks, ``rank00003/trace.json.gz`` and similar files, laid out as in a run directory, and one
file per node in ``replies/``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.artefacts import REPLY_SCHEMA, REQUEST_SCHEMA

MAX_REQUEST_BYTES = 2**20
"""A request that names 100,000 ranks is smaller."""
MAX_REPLY_BYTES = 2**20


class RequestFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID.json``: one request to the ranks of a running job.

    Args:
        schema: ``distprof.request/1``.
        id: Name of the file without ``.json``, and of the folder for the answers.
        kind: The requested data: a trace, the Python stacks, or a Flight Recorder dump.
        seconds: Duration of the trace; 0 for other kinds.
        ranks: The requested ranks, None for all.
        asked_ns: Time of the request, ns since the epoch.
        start_ns: When all ranks begin, ns since the epoch.
        deadline_ns: When the requester stops waiting for answers, ns since the epoch.
        host: Host of the requesting process.
        pid: Process id of the requesting process.
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
            has no answer, and ``reason`` says why.
        reason: Why there is no answer.
        letter: State of its process (as in ``ps``); empty if the process is gone.
        began_ns: When the rank received the request, ns since the epoch by the clock of its node;
            None if it did not.
        num_bytes: Size of its answer.
    """

    rank: int
    state: Literal["accepted", "done", "failed"]
    reason: str = ""
    letter: str = ""
    began_ns: int | None = None
    num_bytes: int = 0


class ReplyFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID/replies/HOST-TOKEN.json``: the reply of one node to a request.

    Args:
        schema: ``distprof.reply/1``.
        id: Id of the request.
        host: Host name of the node.
        refusal: Why the node refuses the request; empty if it accepts.
        is_final: Whether the reply is complete.
        ranks: The requested ranks on the node.
    """

    schema: str = REPLY_SCHEMA
    id: str
    host: str
    refusal: str = ""
    is_final: bool = False
    ranks: tuple[RankReply, ...] = ()
