"""A rank that trains, and in the middle of it does something that programs do and profilers forget.

Its losses and a checksum of its weights go to a file, because some deeds close the streams. After
each deed it opens three files, which must hold only what this program writes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

STEPS = 12
AT = 6
STEP_S = 0.05  # long enough for what is written now and then
BLOCK = bytes(range(256)) * 256
"""Binary, with newlines at odd places."""
NUM_KEPT = 3


class Rank:
    """What the deeds may use.

    Args:
        result: Where the result goes.
        megabytes: Printed by ``flood`` on each stream.
    """

    def __init__(self, result: str, megabytes: int) -> None:
        self.result = result
        self.megabytes = megabytes
        self.losses: list[str] = []
        self.more: dict[str, Any] = {}

    def save(self) -> None:
        Path(self.result).write_text(json.dumps({"losses": self.losses, **self.more}))


def nothing(_: Rank) -> None:
    """What all others are compared with."""


def flood(rank: Rank) -> None:
    """Print many binary bytes on both streams."""
    for number in (1, 2):
        for _ in range(rank.megabytes * 2**20 // len(BLOCK)):
            left = memoryview(BLOCK)
            while left:
                left = left[os.write(number, left) :]


def no_newline(_: Rank) -> None:
    """Print text that no newline ends."""
    sys.stdout.write("progress " * 20_000)
    sys.stdout.flush()


def replace_streams(_: Rank) -> None:
    """Replace Python's streams by something that is no file, or by nothing."""
    sys.stdout = io.StringIO()
    sys.stderr = sys.__stderr__ = sys.__stdout__ = None  # type: ignore[assignment, misc]


def close_streams(_: Rank) -> None:
    """Close standard output and error, whose numbers the next files get."""
    os.close(1)
    os.close(2)


def close_all_files(_: Rank) -> None:
    """Close every file, as daemons do."""
    os.closerange(3, 65_536)


def few_files(_: Rank) -> None:
    """Allow no more open files than this program needs."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(NUM_KEPT)]
    for number in held:
        os.close(number)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, most))


def move(_: Rank) -> None:
    """Change the working directory, and allow nobody else to read what is made."""
    os.chdir("/")
    os.umask(0o077)


def own_handlers(rank: Rank) -> None:
    """Handle all signals, and get each of them."""
    heard: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, lambda got, _: heard.append(got))
        os.kill(os.getpid(), number)
    rank.more["heard"] = heard


def new_session(_: Rank) -> None:
    """Leave the terminal and the group of processes."""
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()


def fork_child(rank: Rank) -> None:
    """Fork a child that outlives this process."""
    parent = os.getpid()
    if os.fork():
        return
    while os.getppid() == parent:
        time.sleep(0.01)
    Path(f"{rank.result}.child").write_text("it outlived its parent")
    sys.exit(3)


def daemonise(_: Rank) -> None:
    """Go on in a process of its own, and end the one that was started."""
    if os.fork():
        os._exit(0)
    os.setsid()


def terminate_child(_: Rank) -> None:
    """Start a process and terminate it; go on for longer than a watcher may wait."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join()
    time.sleep(2.5)


def delete_run(_: Rank) -> None:
    """Delete the run directory, where there is one."""
    if folder := os.environ.get("DISTPROF_RUN_DIR"):
        shutil.rmtree(folder, ignore_errors=True)


def delete_here(_: Rank) -> None:
    """Delete the working directory."""
    shutil.rmtree(Path.cwd())


def fill_disk(_: Rank) -> None:
    """Take all room on the disk of the run directory, where there is one."""
    folder = os.environ.get("DISTPROF_RUN_DIR")
    if folder is None:
        return
    with contextlib.suppress(OSError), (Path(folder).parent / "large").open("wb", 0) as file:
        while True:
            file.write(bytes(4096))


def square(number: int) -> int:
    return number * number


def processes(how: str) -> Callable[[Rank], None]:
    def start(rank: Rank) -> None:
        """Start processes with multiprocessing."""
        with multiprocessing.get_context(how).Pool(1) as pool:
            rank.more["squares"] = pool.map(square, range(4))

    return start


def leave(code: int) -> Callable[[Rank], None]:
    def end(rank: Rank) -> NoReturn:
        """End in the middle of a step."""
        rank.save()
        os._exit(code)

    return end


DEEDS: dict[str, Callable[[Rank], None]] = {
    "nothing": nothing,
    "flood": flood,
    "no-newline": no_newline,
    "replace-streams": replace_streams,
    "close-streams": close_streams,
    "close-all-files": close_all_files,
    "few-files": few_files,
    "move": move,
    "own-handlers": own_handlers,
    "new-session": new_session,
    "fork-child": fork_child,
    "daemonise": daemonise,
    "terminate-child": terminate_child,
    "delete-run": delete_run,
    "delete-here": delete_here,
    "fill-disk": fill_disk,
    "spawn": processes("spawn"),
    "forkserver": processes("forkserver"),
    "leave-0": leave(0),
    "leave-7": leave(7),
}


def train(rank: Rank, deed: Callable[[Rank], None], model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    kept: list[int] = []
    for step in range(STEPS):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        if step == AT:
            deed(rank)
            kept = [_kept(rank, number) for number in range(NUM_KEPT)]
        optimizer.step()
        optimizer.zero_grad()
        rank.losses.append(loss.item().hex())
        time.sleep(STEP_S)
    for number in kept:
        os.write(number, b"kept")
        os.close(number)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    rank.more["weights"] = hashlib.sha256(weights).hexdigest()


def _kept(rank: Rank, number: int) -> int:
    return os.open(f"{rank.result}.kept{number}", os.O_RDWR | os.O_CREAT, 0o600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--do", choices=DEEDS, default="nothing")
    parser.add_argument("--result", required=True)
    parser.add_argument("--megabytes", type=int, default=4)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = Rank(f"{args.result}.{os.environ.get('RANK', '0')}", args.megabytes)
    model: nn.Module = nn.Linear(32, 32)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    train(rank, DEEDS[args.do], model)
    rank.save()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
