"""Two ranks on GPUs: each step works, reduces four buckets, and waits; rank 1 works longer.

Both may share one GPU. NCCL refuses two ranks on one GPU of a host, so each gets a host of its own.
"""

from __future__ import annotations

import os
import sys

import distprof_probes
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = 160
BUCKETS = 4


def train(rank: int, run_dir: str, store: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    if torch.cuda.device_count() < 2:
        os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    options = distprof_probes.ProbeOptions(mode="always-on", measure_overhead=False)
    with distprof_probes.session(run_dir, options=options) as session:
        dist.init_process_group("nccl", store=dist.FileStore(store, 2), rank=rank, world_size=2)
        matrix = torch.randn(4_096, 4_096, device="cuda")
        buckets = [torch.ones(1 << 20, device="cuda") for _ in range(BUCKETS)]
        for _ in range(STEPS):
            works = []
            for bucket in buckets:
                for _ in range(15 if rank else 10):
                    torch.mm(matrix, matrix)
                works.append(dist.all_reduce(bucket, async_op=True))
            for work in works:
                work.wait()
            torch.cuda.synchronize()
            session.step()
        dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1], f"{sys.argv[1]}/store"), nprocs=2)
