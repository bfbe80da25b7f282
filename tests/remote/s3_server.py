"""An S3 server, and a place in front of it that counts what is asked for and answers badly."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Front", "s3_server"]

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}

_SERVER = """
import sys
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""

Answer = Callable[["Front", Any, bytes], bool]
"""Called with the front, the handler and the body of the real answer; True where it answered."""


class Front:
    """Passes requests on to the server, and remembers them.

    Args:
        port: Of the server behind it.
    """

    def __init__(self, port: int) -> None:
        self.behind = port
        self.asked: list[tuple[str, str, str]] = []
        self.sent: dict[str, int] = {}
        self.faults: dict[str, Answer] = {}
        self.before: dict[str, Callable[[], None]] = {}
        self.url = ""

    def reset(self) -> None:
        """Forget requests and faults."""
        self.asked.clear()
        self.sent.clear()
        self.faults.clear()
        self.before.clear()

    def bodies(self, key: str) -> int:
        """Bytes of an object that were sent."""
        return self.sent.get(key, 0)

    def forward(self, handler: Any) -> None:
        """Answer one request."""
        path = unquote(urlsplit(handler.path).path)
        ranged = handler.headers.get("Range", "")
        self.asked.append((handler.command, path, ranged))
        if (action := self.before.get(path)) is not None and handler.command == "GET":
            action()
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=60)
        connection.request(handler.command, handler.path, body, dict(handler.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        fault = self.faults.get(path)
        if fault is not None and fault(self, handler, data):
            return
        if handler.command == "GET" and answer.status in (200, 206):
            self.sent[path] = self.sent.get(path, 0) + len(data)
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                handler.send_header(name, value)
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else len(data)
        handler.send_header("Content-Length", str(length or 0))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)


@contextmanager
def s3_server() -> Iterator[Front]:
    """A server of its own process, behind a front that this process has."""
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        front = Front(port)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    front.forward(self)
                except OSError:
                    self.close_connection = True

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                return

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        with Threads(("127.0.0.1", 0), Handler) as running:
            thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            front.url = f"http://127.0.0.1:{running.server_address[1]}"
            yield front
            running.shutdown()
            thread.join(5)
    finally:
        server.kill()
        server.wait()


def environment(front: Front) -> dict[str, str]:
    """What a program needs to use the server."""
    return {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": front.url}


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _wait_for(port: int) -> None:
    limit = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < limit, "the S3 server did not start"
            time.sleep(0.05)
        else:
            return
