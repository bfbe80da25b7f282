"""A web server of a folder, which knows ranges and counts what it sends."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["serving_folder"]


@contextmanager
def serving_folder(folder: Path, *, has_tags: bool = False) -> Iterator[Any]:
    """Files of a folder, and a page that links to them."""
    made = SimpleNamespace(sent={}, url="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            file = folder / self.path[1:]
            data, status, head = b"", 404, {}
            if self.path == "/":
                links = (f'<a href="{path.name}">x</a>' for path in folder.iterdir())
                data, status = "".join(links).encode(), 200
            elif file.is_file():
                whole = file.read_bytes()
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                data, status = whole[int(first) : int(last) + 1], 206
                end = int(first) + len(data) - 1
                head["Content-Range"] = f"bytes {first}-{end}/{len(whole)}"
                if has_tags:
                    head["ETag"] = f'"{zlib.crc32(whole):x}"'
            made.sent[self.path] = made.sent.get(self.path, 0) + len(data)
            self.send_response_only(status)
            for name, value in {**head, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    class Threads(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Threads(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        made.url = f"http://127.0.0.1:{running.server_address[1]}"
        yield made
        running.shutdown()
        thread.join(5)
