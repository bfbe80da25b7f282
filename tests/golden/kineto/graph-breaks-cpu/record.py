"""Record two steps of compiled functions on a CPU: some break their graph, one compiles again."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
torch.set_num_threads(1)
layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def model(x: torch.Tensor) -> torch.Tensor:
    """Two breaks."""
    x = layers[0](x).relu()
    torch._dynamo.graph_break()
    x = layers[1](x).relu()
    torch._dynamo.graph_break()
    return layers[2](x).sum()


def logged(x: torch.Tensor) -> torch.Tensor:
    x = x.cos()
    torch._dynamo.graph_break()
    return x.sin()


@torch.compile(backend="aot_eager")
def caller(x: torch.Tensor) -> torch.Tensor:
    """One break in a function that it calls, which breaks the caller as well."""
    return logged(x * 2) + 1


@torch.compile(backend="aot_eager")
def whole(x: torch.Tensor) -> torch.Tensor:
    """No break."""
    return (x * 2).sin().sum()


def step(rows: int) -> None:
    model(torch.randn(4, 8)).backward()
    caller(torch.ones(8))
    whole(torch.ones(8))
    whole(torch.ones(rows))
    optimizer.step()
    optimizer.zero_grad()


for _ in range(3):
    step(8)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda prof: prof.export_chrome_trace(sys.argv[1]),
) as prof:
    for rows in (8, 8, 16):
        step(rows)
        prof.step()
print(dict(torch._dynamo.utils.counters["graph_break"]), torch._dynamo.utils.counters["stats"])
