"""One process that trains for a while, and then ends in one of the ways programs end."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--end", default="return")
    parser.add_argument("--own-profiler", action="store_true")
    parser.add_argument("--export", default="")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps: int) -> None:
        for step in range(steps):
            loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step} loss {loss.item()!r}", flush=True)

    if args.own_profiler:
        with torch.profiler.profile() as profiler:
            train(args.steps)
        if args.export:
            profiler.export_chrome_trace(args.export)
        print("own events", any(e.key == "aten::linear" for e in profiler.key_averages()))
    else:
        train(args.steps)
    if args.end == "raise":
        raise ValueError("the data ran out")
    if args.end == "exit":
        sys.exit(5)
    if args.end == "os-exit":
        time.sleep(0.5)  # long enough for the writer
        os._exit(6)
    if args.end == "kill":
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if args.end == "wait":
        print("waiting", flush=True)
        while True:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
