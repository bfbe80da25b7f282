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
    """``requests/ID.json``: one request to the ranks of a running job."""

    schema: str = REQUEST_SCHEMA  # ``distprof.request/1``.
    id: str  # Name of the file without ``.json``, and of the folder for the answers.
    # The requested data: a trace, the Python stacks, or a Flight Recorder dump.
    kind: Literal["profile", "stacks", "flight"]
    seconds: float = 0.0  # Duration of the trace; 0 for other kinds.
    ranks: tuple[int, ...] | None = None  # The requested ranks, None for all.
    asked_ns: int  # Time of the request, ns since the epoch.
    start_ns: int  # When all ranks begin, ns since the epoch.
    deadline_ns: int  # When the requester stops waiting for answers, ns since the epoch.
    host: str = ""  # Host of the requesting process.
    pid: int = 0  # Process id of the requesting process.


class RankReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one rank, as its node reports it."""

    rank: int  # Global rank.
    # ``accepted``: it will answer; ``done``: its answer is in its folder; ``failed``: it has no
    # answer, and ``reason`` says why.
    state: Literal["accepted", "done", "failed"]
    reason: str = ""  # Why there is no answer.
    letter: str = ""  # State of its process (as in ``ps``); empty if the process is gone.
    # When the rank received the request, ns since the epoch by the clock of its node; None if it
    # did not.
    began_ns: int | None = None
    num_bytes: int = 0  # Size of its answer.


class ReplyFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID/replies/HOST-TOKEN.json``: the reply of one node to a request."""

    schema: str = REPLY_SCHEMA  # ``distprof.reply/1``.
    id: str  # Id of the request.
    host: str  # Host name of the node.
    refusal: str = ""  # Why the node refuses the request; empty if it accepts.
    is_final: bool = False  # Whether the reply is complete.
    ranks: tuple[RankReply, ...] = ()  # The requested ranks on the node.
