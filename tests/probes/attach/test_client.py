"""A run directory says which socket a rank serves: others may have written it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from distprof_probes.attach.client import NoAnswer, ask

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers every request, and keeps what it was asked."""

    def __init__(self, path: str) -> None:
        self.asked = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        link, _ = self._listener.accept()
        with link:
            self.asked = link.recv(4096)
            if self.asked:
                link.sendall(ANSWER)

    def close(self) -> None:
        self._thread.join(20)
        self._listener.close()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a short path, as sockets need
        yield str(Path(folder) / "s")


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="Linux says who serves a socket")
def test_a_socket_of_another_process_is_sent_nothing(path: str) -> None:
    server = Server(path)
    with pytest.raises(NoAnswer, match=f"served by process {os.getpid()}, not by the rank"):
        ask(path, "torch_profile", pid=1, within_s=20)
    server.close()
    assert server.asked == b""


def test_the_ranks_own_socket_is_asked(path: str) -> None:
    server = Server(path)
    assert ask(path, "dump_traceback", pid=os.getpid(), within_s=20) == b"ok"
    server.close()
    assert server.asked.startswith(b"POST /handler/dump_traceback ")


def test_what_is_no_socket_is_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_text("kept")
    with pytest.raises(NoAnswer, match="no longer exists"):
        ask(str(file), "dump_traceback", pid=os.getpid(), within_s=1)
    assert file.read_text() == "kept"
