"""Expert parallelism: each rank holds some experts of every layer, and tokens travel to them.

Per layer and forward: one small all-to-all of counts, one of tokens to their experts (dispatch),
one of results back (combine). Backward: the last two again, in the reverse direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from distprof_runs.workloads.all_to_all import all_to_all
from distprof_runs.workloads.model import MixtureOfExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    order: Tensor  # of the received tokens, by local expert
    sent: list[int]
    received: list[int]


class ExpertExchange:
    """All-to-all, used instead of :class:`distprof_runs.workloads.model.LocalExchange`.

    Args:
        group: Ranks that the experts are spread over, in order.
        dtype: Of tokens on the wire.
    """

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        self._group = group
        self._dtype = dtype

    def dispatch(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, list[int], object]:
        """Send tokens, sorted by global expert, to the ranks of their experts; see Exchange."""
        wanted = counts.view(self._group.size(), -1)
        with record_function("distprof:ep op=counts"):
            offered = all_to_all(wanted, self._group)  # row: rank, column: local expert
        sent, received = torch.stack((wanted.sum(1), offered.sum(1))).tolist()
        with record_function("distprof:ep op=dispatch"):
            arrived = all_to_all(tokens.to(self._dtype), self._group, sent, received)
        expert = torch.arange(offered.shape[1], device=offered.device).repeat(len(offered))
        order = torch.argsort(expert.repeat_interleave(offered.flatten()), stable=True)
        ticket = _Ticket(order=order, sent=sent, received=received)
        return arrived[order], offered.sum(0).tolist(), ticket

    def combine(self, out: Tensor, ticket: object) -> Tensor:
        """Send results back to the ranks that sent the tokens, in the original order."""
        if not isinstance(ticket, _Ticket):
            raise TypeError(f"a ticket of dispatch is needed, not {type(ticket).__name__}")
        unsorted = out[torch.argsort(ticket.order)]
        with record_function("distprof:ep op=combine"):
            return all_to_all(unsorted, self._group, ticket.received, ticket.sent)


def moe_layers(model: nn.Module) -> Iterator[MixtureOfExperts]:
    """Every mixture of experts in ``model``."""
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that belong to one expert each."""
    return [weight for layer in moe_layers(model) for weight in layer.experts.parameters()]


def apply_expert_parallel(model: nn.Module, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """Keep this rank's experts of each layer, and exchange tokens with the ranks of the others.

    Args:
        model: Has all experts; changed in place.
        group: Its size divides the number of experts.
        dtype: Of tokens on the wire.
    """
    for layer in moe_layers(model):
        for name, weight in list(layer.experts.named_parameters()):
            own = weight.detach().chunk(group.size())[group.rank()].clone()
            setattr(layer.experts, name, nn.Parameter(own))
        layer.exchange = ExpertExchange(group, dtype)
