"""Attacks from outside: servers that lie, caches that others share, visitors of a watched job.

::

    python -m benchmarks.attacks --only web,cache
    python -m benchmarks.attacks --only visitors --minutes 60

``web``: ``distprof analyze URL`` of a server that lies in one way, about lengths, ranges, versions
or places. ``cache``: entries of a shared cache are replaced between two analyses, or while three of
them run. Each analysis must end within a minute and 400 MB with the report of the undisturbed one,
or with a sentence and exit code 1 or 3. ``visitors``: ``watch`` and ``export prometheus`` listen on
a job of 64 ranks that grows, while 50 clients ask and others send nonsense. Both must answer to the
end, and their memory may not grow by a third.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.measuring import machine
from benchmarks.watch_cost import begin, line

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "tests" / "golden" / "kineto" / "dlrm-v100-8gpu"
LIMIT_S, LIMIT_BYTES = 60, 400_000_000
OURS = re.compile(r"Traceback|unexpected error in distprof")
RANKS, CLIENTS = 64, 50


def analysed(source: str, *options: str, where: Path) -> tuple[int, str, str]:
    """Exit code, hash of the report, and what is wrong with how the analysis ended."""
    report = where / f"report-{random.randrange(1 << 40):x}.json"
    command = [sys.executable, "-m", "distprof", "analyze", source, *options, "-o", str(report)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(where / "home"), "COLUMNS": "80"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, "", "takes more than a minute"
    wrong = "shows an error of distprof" if OURS.search(done.stderr) else ""
    if done.returncode not in (0, 1, 3):
        wrong = wrong or f"exit code {done.returncode}: {done.stderr[-200:]!r}"
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 > LIMIT_BYTES:
        wrong = wrong or "takes more than 400 MB"
    return done.returncode, digest(report), wrong


def digest(report: Path) -> str:
    """Hash of what a report says about the job; empty without a report."""
    if not report.is_file():
        return ""
    said = json.loads(report.read_text())
    told = [said["verdict"]["line"], said["findings"], said["breakdown"], said["step_time"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


# A web server that lies ---------------------------------------------------------------------------

Answer = tuple[int, dict[str, str], bytes]


def _honest(whole: bytes, first: int, last: int) -> Answer:
    data = whole[first : last + 1]
    held = f"bytes {first}-{first + len(data) - 1}/{len(whole)}"
    return 206, {"Content-Range": held, "Content-Length": str(len(data))}, data


def _with(**heads: str) -> Callable[[bytes, int, int], Answer]:
    def lie(whole: bytes, first: int, last: int) -> Answer:
        status, head, data = _honest(whole, first, last)
        return status, {**head, **{k.replace("_", "-"): v for k, v in heads.items()}}, data

    return lie


def _instead(status: int, data: bytes = b"", **heads: str) -> Callable[[bytes, int, int], Answer]:
    named = {key.replace("_", "-"): value for key, value in heads.items()}
    return lambda *_: (status, {"Content-Length": str(len(data)), **named}, data)


LIES: Mapping[str, Callable[[bytes, int, int], Answer]] = {
    "ignores ranges": lambda whole, *_: (200, {"Content-Length": str(len(whole))}, whole),
    "another range": lambda whole, first, last: _honest(whole, first + 7, last + 7),
    "too short": lambda whole, first, last: _honest(whole, first, max(first, last - 9)),
    "shorter than promised": _with(Content_Length="99999999"),
    "longer than promised": _with(Content_Length="1"),
    "negative length": _with(Content_Length="-5"),
    "no number as length": _with(Content_Length="many"),
    "a total of exabytes": _with(Content_Range="bytes 0-10/9999999999999999999"),
    "no total": _with(Content_Range="bytes */*"),
    "nonsense as range": _with(Content_Range="\x1b[31mred"),
    "another version each time": lambda whole, first, last: (
        *(lambda a: (a[0], {**a[1], "ETag": f'"{random.random()}"'}))(_honest(whole, first, last)),
        _honest(whole, first, last)[2],
    ),
    "another content each time": lambda whole, first, last: _honest(
        random.randbytes(len(whole)), first, last
    ),
    "gzip that is none": _with(Content_Encoding="gzip"),
    "a bomb": _instead(200, b"\0" * 50_000_000),
    "to itself": _instead(302, Location="/rank0.json.gz"),
    "to a file": _instead(302, Location="file:///etc/passwd"),
    "to another scheme": _instead(302, Location="ftp://127.0.0.1/x"),
    "to the machine's metadata": _instead(302, Location="http://169.254.169.254/latest"),
    "nothing": _instead(204),
    "an error": _instead(500, b"\x1b]0;title\x07 <script>"),
    "busy": _instead(503, Retry_After="86400"),
    "denied": _instead(403),
    "not there": _instead(404),
    "a page": _instead(200, b"<html><body>Sign in</body></html>", Content_Type="text/html"),
}


@contextlib.contextmanager
def serving(lie: Callable[[bytes, int, int], Answer]) -> Iterator[str]:
    """Address of a server whose only file is a trace, and about which it lies."""
    whole = next(iter(sorted(TRACES.glob("*.json.gz")))).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            first, _, last = (
                self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            )
            status, head, data = lie(whole, int(first or 0), int(last or len(whole)))
            self.send_response_only(status)
            for name, value in head.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)
            self.close_connection = True

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/rank0.json.gz"
        server.shutdown()


def web(folder: Path, rounds: int) -> Iterator[str]:
    """Failures, one sentence each."""
    with serving(_honest) as url:
        _, expected, wrong = analysed(url, "--no-cache", where=folder)
    if wrong or not expected:
        yield f"an honest server: {wrong or 'no report'}"
    for what, lie in LIES.items():
        for _ in range(rounds):
            with serving(lie) as url:
                code, found, wrong = analysed(url, "--no-cache", where=folder)
            if wrong:
                yield f"{what}: {wrong}"
            elif code == 0 and found != expected:
                yield f"{what}: another report, and nothing is said"


# A cache that others share ------------------------------------------------------------------------


def _flip(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    entry.write_bytes(data)


def _linked(entry: Path, target: str = "/etc/passwd") -> None:
    entry.unlink()
    entry.symlink_to(target)


def _folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


def _pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def _swapped(entry: Path) -> None:
    other = random.choice([path for path in entry.parent.parent.rglob("*") if path.is_file()])
    entry.write_bytes(other.read_bytes())


def _another_owner(entry: Path) -> None:
    os.chown(entry, 65534, 65534)


POISONS: Mapping[str, Callable[[Path], object]] = {
    "a bit flipped": _flip,
    "cut": lambda entry: os.truncate(entry, random.randrange(entry.stat().st_size)),
    "empty": lambda entry: entry.write_bytes(b""),
    "noise": lambda entry: entry.write_bytes(random.randbytes(100_000)),
    "another rank's": _swapped,
    "a link": _linked,
    "a link to itself": lambda entry: _linked(entry, entry.name),
    "a folder": _folder,
    "a pipe": _pipe,
    "another owner's": _another_owner,
    "not readable": lambda entry: entry.chmod(0),
    "gone": lambda entry: entry.unlink(),
}


def cache(folder: Path, rounds: int) -> Iterator[str]:
    """Failures, one sentence each."""
    shared = folder / "cache"
    kept = ("--cache-dir", str(shared))
    _, expected, wrong = analysed(str(TRACES), *kept, where=folder)
    if wrong or not expected:
        yield f"undisturbed: {wrong or 'no report'}"
    for what, poison in POISONS.items():
        for _ in range(rounds):
            for entry in [path for path in shared.rglob("*.tables") if path.is_file()]:
                with contextlib.suppress(OSError, ValueError):
                    poison(entry)
            _, found, wrong = analysed(str(TRACES), *kept, where=folder)
            if wrong or found != expected:
                yield f"{what}: {wrong or 'another report'}"
            shutil.rmtree(shared)
            analysed(str(TRACES), *kept, where=folder)
    for _ in range(rounds):
        yield from _raced(folder, kept, expected)


def _raced(folder: Path, kept: tuple[str, ...], expected: str) -> Iterator[str]:
    """Three analyses at once, while entries disappear and are cut."""
    results: list[tuple[int, str, str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(analysed(str(TRACES), *kept, where=folder)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for entry in (folder / "cache").rglob("*"):
            with contextlib.suppress(OSError, ValueError):
                random.choice((POISONS["cut"], POISONS["gone"]))(entry)
        time.sleep(0.2)
    for _, found, wrong in results:
        if wrong or found != expected:
            yield f"raced: {wrong or 'another report'}"


# Visitors of a watched job ------------------------------------------------------------------------

NONSENSE = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0" * 4_096,
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    b"",
)


def visitors(folder: Path, minutes: float) -> Iterator[str]:
    """Failures, one sentence each."""
    job = folder / "job"
    job.mkdir()
    files = begin(job, RANKS)
    until = time.monotonic() + 60 * minutes
    answers: Counter[str] = Counter()
    servers = {
        "watch": ("watch", str(job), "--listen", "{}", "--every", "1"),
        "export prometheus": ("export", "prometheus", str(job), "--listen", "{}"),
    }
    running, ports = {}, {}
    for name, words in servers.items():
        ports[name] = _free_port()
        command = [word.format(ports[name]) for word in words]
        running[name] = subprocess.Popen(
            [sys.executable, "-m", "distprof", *command],
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{ports[name]}.err").open("w"),
        )
    time.sleep(5)
    threads = [
        threading.Thread(target=_ask, args=(name, ports[name], number, until, answers))
        for number in range(CLIENTS)
        for name in servers
    ]
    threads += [
        threading.Thread(target=_annoy, args=(port, until, answers)) for port in ports.values()
    ]
    for thread in threads:
        thread.start()
    step, memory = 100, {name: [_memory(process.pid)] for name, process in running.items()}
    while time.monotonic() < until:
        for rank, file in enumerate(files):
            with file.open("ab") as stream:
                stream.write(line(step, rank))
        step += 1
        time.sleep(1)
        for name, process in running.items():
            memory[name].append(_memory(process.pid))
    for thread in threads:
        thread.join(30)
    print(dict(answers))
    for name, process in running.items():
        settled, last = memory[name][len(memory[name]) // 4], memory[name][-1]
        grown = (
            f"{settled / 1e6:.0f} MB after a quarter of the time, {last / 1e6:.0f} MB at the end"
        )
        print(f"{name}: {grown}")
        if process.poll() is not None:
            yield f"{name} has ended with exit code {process.returncode}"
        if last > 4 / 3 * settled:
            yield f"{name}: its memory grows, {grown}"
        if OURS.search((folder / f"{ports[name]}.err").read_text()):
            yield f"{name} shows an error of distprof"
        if not answers[f"{name}: answered"] or answers[f"{name}: refused"]:
            yield f"{name}: {answers[f'{name}: refused']} of its clients got no answer"
        process.terminate()
        process.wait(30)


def _ask(name: str, port: int, number: int, until: float, answers: Counter[str]) -> None:
    path = "/metrics" if name != "watch" else ("/", "/report.json")[number % 2]
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                answer.read()
            answers[f"{name}: answered"] += 1
        except urllib.error.HTTPError as error:
            answers[f"{name}: status {error.code}"] += 1
        except OSError:
            answers[f"{name}: refused"] += 1
        time.sleep(random.uniform(1, 3))


def _annoy(port: int, until: float, answers: Counter[str]) -> None:
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as caller,
        ):
            caller.sendall(random.choice(NONSENSE))
            caller.settimeout(0.2)
            caller.recv(1_000)
        answers["nonsense"] += 1
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def _memory(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Print each failure, and how many attacks there were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="web,cache,visitors", help="attacks, by commas")
    parser.add_argument("--rounds", type=int, default=3, help="per lie and poison")
    parser.add_argument("--minutes", type=float, default=60, help="of visits")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    print(machine())
    failures = 0
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as place:
            if name == "visitors":
                found = visitors(Path(place), options.minutes)
            else:
                found = {"web": web, "cache": cache}[name](Path(place), options.rounds)
            for failure in found:
                failures += 1
                print(f"{name}: {failure}", flush=True)
    number = options.rounds * (len(LIES) + len(POISONS) + 1)
    print(f"{failures} failures; {number} lies and poisons if all were asked for")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
