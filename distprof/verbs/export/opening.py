"""Hands one file to the page of Perfetto, over the loopback address of this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

from distprof.verbs.sources import cannot_listen

PAGE = "https://ui.perfetto.dev"
HOST, PORT = "127.0.0.1", 9001
"""The only address of a user's machine from which the policy of :data:`PAGE` lets it fetch.

Source:
    Perfetto, ``tools/open_trace_in_ui`` and the policy in ``ui/src/frontend/index.ts``.
"""

_SHOWN = ({"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(distprof|findings)$"]},)
"""Tracks that the page unfolds: those of distprof itself."""


def address_of(file: Path, port: int) -> str:
    """What to open in a browser while :func:`serve` runs."""
    commands = quote(json.dumps(_SHOWN, separators=(",", ":")), safe="")
    return f"{PAGE}/#!/?url=http://{HOST}:{port}/{quote(file.name)}&startupCommands={commands}"


def serve(file: Path, told: Callable[[str], None], *, port: int = PORT) -> None:
    """Serve a file, and nothing else, until the page has fetched it.

    Args:
        file: The file.
        told: Gets the address to open, once it can be opened.
        port: Port to listen on; 0 for any.

    Raises:
        InputError: If the port is taken.
    """
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        fix = f"end the program that listens there, or drag the file into {PAGE}"
        raise cannot_listen(HOST, port, error, fix=fix) from error
    with server:
        server.file = file
        told(address_of(file, server.server_port))
        while not server.is_fetched:
            server.handle_request()


class _Server(HTTPServer):
    file: Path
    is_fetched = False

    def handle_error(self, *_: object) -> None:
        """Wait for the next request: a browser that goes away in the middle may come back."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds for a request; others wait until then

    def do_OPTIONS(self) -> None:
        """Answer a browser that asks whether a page may fetch from this machine."""
        self._begin(204)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_GET(self) -> None:
        """Send the file."""
        file = self.server.file
        # Another name of this machine would mean that a foreign page got here by its own name
        is_asked_here = self.headers.get("Host") == f"{HOST}:{self.server.server_port}"
        if not is_asked_here or self.path != f"/{quote(file.name)}":
            self.send_error(404)
            return
        with file.open("rb") as data:
            self._begin(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            shutil.copyfileobj(data, self.wfile)
        self.server.is_fetched = True

    def _begin(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Access-Control-Allow-Origin", PAGE)
        self.send_header("Cache-Control", "no-store")

    def log_message(self, *_: object) -> None:
        """Say nothing: a request is not an event for the user."""
