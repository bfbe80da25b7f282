"""DDP communication hooks: what is sent instead of a bucket of gradients.

Each makes one collective per bucket, or keeps its collectives in order, because gloo pairs them by
order.
"""

# No postponed annotations here: DDP compares the annotations of its hooks with classes.
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future


def ordered_powersgd_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """PowerSGD of torch, one bucket after the other.

    Its callbacks start further collectives when the first one ends, on a gloo thread. With several
    buckets in flight, ranks start them in different orders, and gloo pairs them by order. Waiting
    for each bucket keeps the order, at the cost of overlap with backward.
    """
    reduced: Future[Tensor] = powerSGD_hook(state, bucket)
    reduced.wait()
    return reduced


def bf16_hook(group: ProcessGroup, bucket: GradBucket) -> Future[Tensor]:
    """All-reduce in bfloat16: half the bytes. torch's own hook needs CUDA and NCCL."""
    gradients = bucket.buffer()
    sent = gradients.to(torch.bfloat16).div_(group.size())

    def into_bucket(reduced: Future[list[Tensor]]) -> Tensor:
        gradients.copy_(reduced.value()[0])
        return gradients

    work = dist.all_reduce(sent, group=group, async_op=True)
    return work.get_future().then(into_bucket)  # type: ignore[no-any-return]


class TopKState:
    """State of top-k compression: the part of the gradients that has not been sent yet.

    Args:
        group: Ranks that reduce.
        ratio: Share of each bucket's elements sent, at least one.
    """

    def __init__(self, group: ProcessGroup, ratio: float) -> None:
        self.group = group
        self.ratio = ratio
        self._unsent: dict[tuple[int, ...], Tensor] = {}

    def unsent_of(self, bucket: GradBucket) -> Tensor:
        """Error feedback of this bucket; zero at first. DDP regroups buckets after one step."""
        key = tuple(id(weight) for weight in bucket.parameters())
        if key not in self._unsent:
            self._unsent[key] = torch.zeros_like(bucket.buffer())
        return self._unsent[key]


def topk_hook(state: TopKState, bucket: GradBucket) -> Future[Tensor]:
    """Send the largest k elements of the gradients plus the unsent remainder of earlier steps.

    On the wire: one all-gather per bucket of 2k int32 elements per rank, the first k the bits of
    the float32 values, the other k their positions in the bucket. So a step gathers 8 · k · P bytes
    where an all-reduce has 4 · n: worth it for k/n well below 1/P.

    Source:
        Lin et al. 2018, Deep Gradient Compression: sparse updates with local accumulation.
    """
    gradients = bucket.buffer()
    unsent = state.unsent_of(bucket)
    unsent += gradients
    count = max(1, int(state.ratio * unsent.numel()))
    positions = unsent.abs().topk(count, sorted=False).indices
    values = unsent[positions]
    unsent[positions] = 0
    packed = torch.cat((values.float().view(torch.int32), positions.to(torch.int32)))
    everyone = packed.new_empty(state.group.size() * packed.numel())

    def into_bucket(_: Future[list[Tensor]]) -> Tensor:
        rows = everyone.view(-1, 2, count)
        received = rows[:, 0].reshape(-1).view(torch.float32).to(gradients.dtype)
        gradients.zero_().index_add_(0, rows[:, 1].reshape(-1).long(), received)
        gradients.div_(state.group.size())
        return gradients

    work = dist.all_gather_into_tensor(everyone, packed, group=state.group, async_op=True)
    return work.get_future().then(into_bucket)  # type: ignore[no-any-return]
