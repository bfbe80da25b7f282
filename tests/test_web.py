"""Web servers that send too much, too little, too slowly or elsewhere: an answer, in time."""

import gzip
import socket
import socketserver
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from distprof import web
from distprof.bounds import TooLargeError
from distprof.cli import main
from distprof.errors import WebError
from distprof.ingest.discovery import discover
from distprof.ingest.files import beginning, opened
from distprof.remote import file_system
from distprof.web import BLOCK_BYTES, WebFileSystem
from tests.cli.test_special_files import limited

TRACE = (Path(__file__).parent / "golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz").read_bytes()
LONG = bytes(range(256)) * 12_000  # three blocks


class Server:
    """A server on this machine whose answers are written byte by byte.

    Args:
        answers: Path to what answers: called with the range that was asked for and a function that
            sends bytes, which raises when the other side has left.
    """

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def handle(self, connection):
        head = b""
        while b"\r\n\r\n" not in head and (part := connection.recv(1 << 16)):
            head += part
        path = head.split(b" ")[1].decode() if b" " in head else "/"
        ranged = next(
            (line[13:] for line in head.decode().split("\r\n") if line.startswith("Range: bytes=")),
            "",
        )
        self.asked.append((path, ranged))
        answer = self.answers.get(path)
        if answer is None:
            connection.sendall(b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n")
        else:
            answer(ranged, connection.sendall)


@contextmanager
def serving(answers):
    made = Server(answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            try:
                made.handle(self.request)
            except OSError:
                return

    class Threads(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

    with Threads(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        made.url = f"http://127.0.0.1:{running.server_address[1]}"
        try:
            yield made
        finally:
            running.shutdown()
            thread.join(5)


def whole(data, length=None):
    """A server without ranges."""

    def answer(_, send):
        size = len(data) if length is None else length
        send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + data)

    return answer


def ranges(data):
    """A server with ranges."""

    def answer(ranged, send):
        if not ranged:
            return whole(data)(ranged, send)
        first, last = map(int, ranged.split("-"))
        if first >= len(data):
            return send(b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n")
        part = data[first : last + 1]
        head = f"Content-Range: bytes {first}-{first + len(part) - 1}/{len(data)}\r\n"
        head += f"Content-Length: {len(part)}\r\n\r\n"
        return send(b"HTTP/1.1 206 Part\r\n" + head.encode() + part)

    return answer


def forever(first, again, pause_s=0.0):
    def answer(_, send):
        send(first)
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            send(again)
            time.sleep(pause_s)

    return answer


def redirect(place):
    def answer(_, send):
        send(b"HTTP/1.1 302 Away\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % place.encode())

    return answer


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A short limit, and no block of another test's server on the same port."""
    monkeypatch.setattr(web, "LIMIT_S", 1.0)
    WebFileSystem.clear_instance_cache()
    with limited(30):
        yield


@pytest.mark.parametrize("answer", [whole, ranges])
def test_a_file_is_read_whole_and_from_any_place_on_any_server(answer):
    with serving({"/a": answer(LONG)}) as server:
        system, path = file_system(f"{server.url}/a")
        assert system.info(path) == {"name": path, "size": len(LONG), "type": "file"}
        with system.open(path, "rb") as stream:
            assert stream.read() == LONG
            assert stream.seek(0) == 0
            assert stream.read(5) == LONG[:5]
            assert stream.seek(-3, 2) == len(LONG) - 3
            assert stream.read() == LONG[-3:]
            assert stream.seek(BLOCK_BYTES - 1) == BLOCK_BYTES - 1
            assert stream.read(2) == LONG[BLOCK_BYTES - 1 : BLOCK_BYTES + 1]


@pytest.mark.parametrize("answer", [whole, ranges])
def test_a_trace_is_analysed_over_http(answer, tmp_path, capsys):
    with serving({"/rank0.json.gz": answer(TRACE)}) as server:
        words = ["analyze", f"{server.url}/rank0.json.gz", "--cache-dir", str(tmp_path)]
        assert main(words) == 0, capsys.readouterr().err
        assert len(server.asked) <= 12  # each kind of file looks at its beginning, once fetched


def test_what_is_not_there_is_no_file():
    with serving({}) as server:
        system, path = file_system(f"{server.url}/nothing")
        assert not system.exists(path)
        assert not system.isfile(path)
        with pytest.raises(FileNotFoundError):
            system.open(path, "rb")


def test_a_pattern_finds_the_traces_of_a_page():
    page = (
        b'<a href="rank0.json.gz">a</a> <a href="../up">b</a> <a href="http://other/x.json">c</a>'
    )
    with serving({"/run/": whole(page), "/run/rank0.json.gz": ranges(TRACE)}) as server:
        found = discover(f"{server.url}/run/*.json.gz")
        assert [trace.path for trace in found.traces] == [f"{server.url}/run/rank0.json.gz"]


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HOSTILE = {
    "a body that never ends": forever(HEAD + b"\r\n", b'{"a"' * 50_000),
    "chunks that never end": forever(CHUNKED, b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    "a range that never ends": forever(
        b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-10/99999999999\r\n\r\n", b"{" * 65_536
    ),
    "a byte now and then": forever(HEAD + b"Content-Length: 100\r\n\r\n", b"{", 0.1),
    "a chunk's size now and then": forever(CHUNKED, b"1", 0.1),
    "a header that never ends": forever(HEAD + b"X: ", b"x" * 60_000),
    "a header now and then": forever(HEAD, b"X: y\r\n", 0.05),
    "nothing": forever(b"", b"", 0.1),
    "a body that ends early": whole(b"{}", 1_000),
    "a size beyond all sizes": whole(b"{}", 1 << 62),
    "a size that is none": lambda _, send: send(HEAD + b"Content-Length: many\r\n\r\n{}"),
    "no HTTP": lambda _, send: send(b"SSH-2.0-OpenSSH_9\r\n"),
    "a redirect to itself": redirect("/a"),
    "a redirect to file:": redirect("file:///etc/passwd"),
    "a redirect to ftp:": redirect("ftp://127.0.0.1/x"),
    "a redirect to a word": redirect("gopher:x"),
    "a redirect to nowhere": redirect("http://"),
    "an error": lambda _, send: send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_answered_with_a_sentence(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(web, "UNSIZED_BYTES", 4 * BLOCK_BYTES)
    with serving({"/a": HOSTILE[name]}) as server:
        code = main(["analyze", f"{server.url}/a", "--cache-dir", str(tmp_path)])
    err = capsys.readouterr().err
    assert code == 3, err
    assert "expected: " in err
    assert "unexpected error" not in err
    assert "root:" not in err


def test_a_body_of_unknown_size_is_limited(monkeypatch):
    monkeypatch.setattr(web, "UNSIZED_BYTES", 2 * BLOCK_BYTES)
    with serving({"/a": forever(HEAD + b"\r\n", bytes(1 << 16))}) as server:
        system, path = file_system(f"{server.url}/a")
        with system.open(path, "rb") as stream, pytest.raises(TooLargeError, match="more than"):
            stream.read()


def test_a_file_that_changes_while_it_is_read_is_an_error():
    versions = iter([LONG, LONG + b"x", LONG + b"x"])
    with serving({"/a": lambda ranged, send: ranges(next(versions))(ranged, send)}) as server:
        system, path = file_system(f"{server.url}/a")
        with system.open(path, "rb") as stream, pytest.raises(WebError, match="changed"):
            stream.read()


def test_a_redirect_within_a_network_is_followed_and_passes_no_password():
    heads = []

    def listening(ranged, send):
        heads.append(ranged)
        ranges(b"[]")(ranged, send)

    with (
        serving({"/b": listening}) as second,
        serving({"/a": redirect(f"{second.url}/b")}) as first,
    ):
        url = first.url.replace("http://", "http://user:secret@") + "/a"
        with file_system(url)[0].open(url, "rb") as stream:
            assert stream.read() == b"[]"
    assert heads


class Peer:
    """A connection to an address."""

    def __init__(self, address):
        self.address = address
        self.is_closed = False

    def getpeername(self):
        return (self.address, 80)

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(
    ("first", "second", "is_followed"),
    [
        ("93.184.216.34", "1.1.1.1", True),
        ("93.184.216.34", "127.0.0.1", False),
        ("93.184.216.34", "10.0.0.1", False),
        ("93.184.216.34", "169.254.169.254", False),
        ("93.184.216.34", "::1", False),
        ("93.184.216.34", "::ffff:127.0.0.1", False),
        ("93.184.216.34", "fe80::1%eth0", False),
        ("10.0.0.2", "10.0.0.1", True),
        ("10.0.0.2", "169.254.169.254", False),
        ("127.0.0.1", "169.254.169.254", False),
    ],
)
def test_a_redirect_never_leads_inside_from_outside(first, second, is_followed):
    visit = web._Visit()
    visit.check(Peer(first))
    visit.hops = 1
    peer = Peer(second)
    if is_followed:
        visit.check(peer)
    else:
        with pytest.raises(WebError, match="a redirect to"):
            visit.check(peer)
    assert peer.is_closed is not is_followed


def test_a_gzip_bomb_behind_a_url_is_not_unpacked(monkeypatch):
    bomb = gzip.compress(b"") * 200_000
    with serving({"/log.gz": whole(bomb)}) as server:
        assert beginning(f"{server.url}/log.gz", 1 << 20) == b""
        with opened(f"{server.url}/log.gz") as stream, pytest.raises(EOFError, match="next to"):
            stream.read(10)


def test_an_address_without_a_server_is_named(capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        assert main(["analyze", url]) == 3
    assert "ConnectionRefusedError" in capsys.readouterr().err
