"""Serves a watcher's latest report to clients that cannot read the run directory.

Clients never reach the training processes: the watcher reads files, and clients ask the watcher.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from distprof.verbs.addresses import cannot_listen
from distprof.verbs.watch.endpoint import WITHIN_S
from distprof.verbs.watch.result import WatchReport
from distprof.verbs.watch.show import WATCH

MAX_CLIENTS: Final = 32


class Board:
    """Serves the latest report at every path, in threads of this process, until it is closed.

    Port 0 is any free port.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _Answer)
        except (OSError, OverflowError) as error:
            raise cannot_listen(host, port, error) from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port, as a URL."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def show(self, report: WatchReport) -> None:
        """Serve this report from now on."""
        self._server.body = WATCH.encode(report)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Serves a bounded number of clients; further connections are closed without a thread."""

    daemon_threads = True
    block_on_close = False
    body = b""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)
        self._slots = threading.BoundedSemaphore(MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""


class _Answer(BaseHTTPRequestHandler):
    timeout = WITHIN_S
    server: _Server
    server_version = "distprof"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(self.server.body)

    def do_HEAD(self) -> None:
        self._answer(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the terminal shows the page."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
