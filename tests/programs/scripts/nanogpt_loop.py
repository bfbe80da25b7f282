"""nanoGPT's training loop: batches from a memory map, accumulation and clipping by hand, DDP."""

import math
import tempfile

import common
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, ACCUMULATED, WARMUP, RATE = 4, 2, 5, 1e-3


def rate_of(step: int) -> float:
    """Linear warm-up, then a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / max(1, common.STEPS - WARMUP)
    return RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    raw = common.gpt2()
    model = DistributedDataParallel(raw)
    optimizer = torch.optim.AdamW(raw.parameters(), betas=(0.9, 0.95))
    tokens = np.random.default_rng(7).integers(0, common.VOCABULARY, 1 << 16, dtype=np.uint16)
    with tempfile.NamedTemporaryFile() as file:
        tokens.tofile(file.name)
        made = torch.Generator().manual_seed(1337 + dist.get_rank())

        def get_batch():
            common.in_loader()
            data = np.memmap(file.name, dtype=np.uint16, mode="r")
            first = torch.randint(len(data) - common.LENGTH, (BATCH,), generator=made)
            rows = [data[at : at + common.LENGTH].astype(np.int64) for at in first.tolist()]
            return torch.from_numpy(np.stack(rows))

        batch = get_batch()
        for step in range(common.STEPS):
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
            for micro in range(ACCUMULATED):
                model.require_backward_grad_sync = micro == ACCUMULATED - 1
                loss = model(input_ids=batch, labels=batch).loss / ACCUMULATED
                batch = get_batch()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            common.log(step, ACCUMULATED * loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
