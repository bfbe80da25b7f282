"""Measure pairs of settings in turns, in one process and without any profiler.

Reads pairs, a JSON object per line of standard input (an empty line: begin), and adds one line per
pair to a file as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_programs import ranks
from benchmarks.gpu_programs.blocks import in_turns
from benchmarks.gpu_programs.load import restrict
from benchmarks.gpu_programs.settings import Settings
from benchmarks.gpu_programs.train import Training

__all__ = ["in_turns", "measure"]


def measure(
    pair: dict[str, Any], device: str, *, blocks: int, steps: int, warm_up: int
) -> dict[str, Any]:
    """Milliseconds of a step in each block, of both settings in turns."""
    program = pair["program"]
    both = [Settings(**pair[name]) for name in ("healthy", "faulty")]
    if program == "ranks":
        return ranks.measure(both, device, blocks=blocks, steps=steps, warm_up=warm_up)
    restrict(both[0])
    trainings: list[Training] = []
    try:
        for settings in both:
            trainings.append(opened(program, settings, device))
            with trainings[-1].ready():
                trainings[-1].run(warm_up)
                trainings[-1].wait()
        return in_turns(trainings, blocks, steps)
    finally:
        for training in trainings:
            training.close()


def opened(program: str, settings: Settings, device: str) -> Training:
    """A training of that program; the Trainer's needs a library."""
    if program == "trainer":
        from benchmarks.gpu_programs.trainer import TrainerTraining

        return TrainerTraining(settings, device)
    return Training(program, settings, device)


def device_name(device: str) -> str:
    """As a user knows it."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def main() -> None:
    """Measure all pairs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--block-steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=5)
    options = parser.parse_args()
    pairs = [json.loads(line) for line in iter(sys.stdin.readline, "\n")]
    for pair in pairs:
        began = time.monotonic()
        result = {"program": pair["program"], "fault": pair["fault"]}
        try:
            result |= {"device": device_name(options.device)}
            result |= measure(
                pair,
                options.device,
                blocks=options.blocks,
                steps=options.block_steps,
                warm_up=options.warm_up,
            )
        except Exception as error:  # one pair that fails must not cost the others
            traceback.print_exc()
            result["error"] = f"{type(error).__name__}: {error}"[:300]
        with options.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
