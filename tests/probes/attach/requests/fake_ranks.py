"""Ranks of one node that are threads of this process, with real sockets."""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distprof_probes.attach.sockets import socket_folder
from distprof_probes.job.process import process_state

__all__ = ["ANSWERS", "served_ranks", "written_rank"]

STACK = """Current thread 0x1 (most recent call first):
  File "train.py", line 40 in average
  File "train.py", line 60 in <module>
"""
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()
ANSWERS = {
    "dump_traceback": STACK.encode(),
    "fr_trace_json": json.dumps({"version": "2.10", "entries": [{}, {}, {}]}).encode(),
    "torch_profile": TRACE,
}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def served_ranks(
    run_dir: Path, *ranks: int, answers: Mapping[str, bytes] = ANSWERS
) -> Iterator[list[str]]:
    """Ranks with a socket each; what they are asked is in the list."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = urlsplit(self.path).path.removeprefix("/handler/")
            asked.append(self.path)
            body = answers.get(name, b"unknown")
            self.send_response(200 if name in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "a rank"

        def log_message(self, *_: Any) -> None:
            pass

    with ExitStack() as opened:
        for rank in ranks:
            folder = socket_folder(run_dir, rank)
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            server = opened.enter_context(_Server(str(folder / "s"), Handler))
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            opened.callback(server.shutdown)
            written_rank(run_dir, rank, socket=str(folder / "s"))
        yield asked


def written_rank(run_dir: Path, rank: int, **facts: Any) -> Path:
    """The files of a rank of this process, or of another as ``facts`` say."""
    folder = run_dir / f"rank{rank:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    state = process_state(os.getpid())
    assert state is not None
    attach = {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_ticks": state.started_ticks,
        "takes_requests": True,
        **facts,
    }
    (folder / "attach.json").write_text(json.dumps(attach))
    return folder
