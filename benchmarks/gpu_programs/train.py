"""A plain training loop on one device; each setting changes one thing.

::

    python -m benchmarks.gpu_programs.train transformer --steps 90
    python -m benchmarks.gpu_programs.train moe --settings '{"workers": 0, "load_ms": 64}'
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils.data import DataLoader

from benchmarks.gpu_programs.data import loader, prepare
from benchmarks.gpu_programs.load import Others, restrict
from benchmarks.gpu_programs.models import build, shape_of
from benchmarks.gpu_programs.settings import Settings

__all__ = ["Training", "parse", "train"]

LENGTHS = (1.0, 0.75, 0.5, 0.875, 0.625)
ROOM = (1.02, 1.05, 1.1, 1.2, 1.5)
"""Memory that a limited program may reserve, as a multiple of its peak."""
RAMP = 3
"""Steps at the beginning of a block, not measured: batches loaded in advance are used up."""
MATMUL = {"fp32": "highest", "tf32": "high", "bf16": "high"}


class Training:
    """A model, its data and its optimizer; close it at the end."""

    def __init__(self, model: str, settings: Settings, device: str) -> None:
        torch.manual_seed(0)
        self.settings, self.device = settings, torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.shape = shape_of(model, settings)
        with self.device:
            stack = build(model, settings)
        if self.shape.is_image:
            stack = stack.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.stack = stack
        self.done, self.limit = 0, 1.0
        self.batches = iter(self._loader())
        self.model: Callable[..., Any] = self.stack
        if settings.graphed and self.cuda:
            self.model = self._graphed()
        self.optimizers = self._make_optimizers()
        self.kept = [[number] for number in range(settings.objects)]
        self.hits = torch.zeros((), device=self.device)
        self.others = Others(settings, self.device.type)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """What belongs to the process or to the machine, and not to the model, as it must be."""
        torch.set_float32_matmul_precision(MATMUL[self.settings.precision])
        torch.backends.cudnn.allow_tf32 = self.settings.precision != "fp32"
        with self.others.running(), self._memory():
            yield

    def run(self, steps: int) -> None:
        """Train for some steps; does not wait for the GPU at the end."""
        for _ in range(steps):
            self._step()
            self.done += 1

    def block_ms(self, steps: int) -> float:
        """Mean milliseconds of these steps, between two synchronisations."""
        with self.ready():
            self.run(RAMP)
            self.wait()
            began = time.perf_counter()
            self.run(steps)
            self.wait()
            return 1e3 * (time.perf_counter() - began) / steps

    def close(self) -> None:
        """End workers and other processes, and free the GPU's memory."""
        self.others.close()
        if self.settings.compiled or self.settings.guarded:
            torch.compiler.reset()
        self.__dict__.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    # A step ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        settings = self.settings
        inputs, targets = self._batch()
        if settings.preparing and settings.prepared_by == "thread":
            with self._named("prepare_batch"):
                prepare(settings)
        tag = f"step {self.done}" if settings.guarded == "changing" else ""
        with self._autocast():
            loss, logits = self.model(inputs, targets, *((tag,) if settings.guarded else ()))
        loss.backward()
        self._clip()
        self._update()
        self._report(loss, logits, targets)
        self._housekeeping()

    def _batch(self) -> tuple[Tensor, Tensor]:
        batch = next(self.batches)
        if self.settings.ragged:
            share = LENGTHS[self.done % len(LENGTHS)]
            length = int(self.shape.length * share) // 16 * 16
            batch = [self._cut(part, length) for part in batch]
        inputs, targets, *_ = [
            part.to(self.device, non_blocking=self.settings.non_blocking) for part in batch
        ]
        return inputs, targets

    def _cut(self, part: Tensor, length: int) -> Tensor:
        if self.shape.is_image:
            return part[..., :length, :length] if part.dim() == 4 else part
        return part[:, :length]

    def _clip(self) -> None:
        parameters = [one for one in self.stack.parameters() if one.grad is not None]
        if not self.settings.norm:
            nn.utils.clip_grad_norm_(parameters, 1.0)
            return
        norms = [one.grad.norm() for one in parameters if one.grad is not None]
        if self.settings.norm == "item":
            total: Any = sum(norm.item() ** 2 for norm in norms) ** 0.5
        else:
            total = torch.stack(norms).norm()
        scale = 1 / max(total, 1.0) if isinstance(total, float) else (1 / total).clamp(max=1)
        torch._foreach_mul_([one.grad for one in parameters if one.grad is not None], scale)

    def _update(self) -> None:
        for held, update in zip(self.held, self.updated, strict=True):
            assert update.grad is not None
            held.grad = update.grad.to("cpu")
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for held, update in zip(self.held, self.updated, strict=True):
                update.copy_(held)
        self.stack.zero_grad(set_to_none=True)

    def _report(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        settings = self.settings
        if settings.accuracy:
            right = logits.argmax(-1) == targets.flatten()
            if settings.accuracy == "list":
                self.hits = self.hits + sum(right.cpu().tolist()) / len(right)
            else:
                self.hits = self.hits + right.float().mean()
        if settings.log == "item":
            loss.item()
        if settings.log == "print":
            print(f"step {self.done}: loss {loss}")
        if settings.log == "many" and self.done % 5 == 4:
            weights = list(self.stack.parameters())[:60]
            print(f"step {self.done}:", *(f"{one.detach().mean().item():.4f}" for one in weights))

    def _housekeeping(self) -> None:
        settings = self.settings
        if settings.empty_cache and self.cuda:
            torch.cuda.empty_cache()
        if settings.collect:
            gc.collect()
        if settings.spin_ms:
            until = time.perf_counter() + settings.spin_ms / 1e3
            while time.perf_counter() < until:
                pass
        if settings.sleep_ms:
            time.sleep(settings.sleep_ms / 1e3)
        if settings.save_every and self.done % settings.save_every == settings.save_every - 1:
            with self._named("save_checkpoint"), tempfile.TemporaryDirectory() as folder:
                torch.save(self.stack.blocks[-3:].state_dict(), Path(folder) / "checkpoint.pt")
        every = settings.evaluate_every
        if every and self.done % every == every - 1:
            with self._named("evaluate"):
                self._evaluate()

    @torch.no_grad()
    def _evaluate(self) -> None:
        self.stack.eval()
        losses = []
        for _ in range(5):
            inputs, targets = self._batch()
            with self._autocast():
                losses.append(self.stack(inputs, targets)[0])
        self.stack.train()
        print(f"step {self.done}: evaluated, loss {torch.stack(losses).mean().item():.3f}")

    # Set-up ---------------------------------------------------------------------------------------

    def _named(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return record_function(name) if self.settings.annotated else contextlib.nullcontext()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.settings.precision == "bf16",
            cache_enabled=not self.settings.graphed,
        )

    def _loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return loader(self.shape, self.settings, cuda=self.cuda)

    def _graphed(self) -> Callable[..., Any]:
        with self._autocast():
            graphed: Callable[..., Any] = torch.cuda.make_graphed_callables(
                self.stack, self._batch()
            )
        return graphed

    def _make_optimizers(self) -> list[torch.optim.Optimizer]:
        self.updated: list[nn.Parameter] = []
        if self.settings.offload:
            self.updated = list(self.stack.blocks[-2:].parameters())
        self.held = [nn.Parameter(one.detach().cpu()) for one in self.updated]
        left = {id(one) for one in self.updated}
        rest = [one for one in self.stack.parameters() if id(one) not in left]
        how = {"fused": True} if self.settings.fused else {"foreach": False}
        made: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, 3e-4, **how)]  # type: ignore[arg-type]
        if self.held:
            made.append(torch.optim.AdamW(self.held, 3e-4, fused=True))
        return made

    @contextlib.contextmanager
    def _memory(self) -> Iterator[None]:
        """Leave hardly more memory than a step needs, once it is known how much that is."""
        if not (self.settings.limited and self.cuda):
            yield
            return
        if self.limit == 1.0:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.run(len(LENGTHS))
            all_bytes = torch.cuda.get_device_properties(self.device).total_memory
            used = torch.cuda.max_memory_allocated() / all_bytes
            self.limit = next(used * share for share in ROOM if self._fits(used * share))
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(self.limit)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def _fits(self, limit: float) -> bool:
        """Whether steps of all lengths fit into this share of the GPU's memory."""
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(limit)
        try:
            self.run(2 * len(LENGTHS))
        except torch.OutOfMemoryError:
            self.stack.zero_grad(set_to_none=True)
            return False
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return True


def parse(description: str | None, models: Sequence[str]) -> argparse.Namespace:
    """The command line of a training program; ``settings`` are Settings."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("model", choices=models)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--settings", type=lambda text: Settings(**json.loads(text)), default="{}")
    parser.add_argument("--wait", action="store_true", help="begin when stdin has a line")
    return parser.parse_args()


def train(training: Training, steps: int) -> None:
    """Train, and end everything that was started."""
    with training.ready():
        training.run(steps)
        training.wait()
    training.close()
    print(f"trained {steps} steps", flush=True)


def main() -> None:
    """Train one of the models."""
    options = parse(__doc__, ("transformer", "convolution", "moe"))
    if options.wait:
        sys.stdin.readline()
    restrict(options.settings)
    train(Training(options.model, options.settings, options.device), options.steps)


if __name__ == "__main__":
    main()
