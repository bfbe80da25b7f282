"""Routing records: who is watched, what counts as a micro-batch, what is not counted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.moe_routing import MoeRoutingProbe
from distprof_probes.session import Session

from distprof.artefacts.records import MoeRecord

torch = pytest.importorskip("torch")

from distprof_runs.options import ModelOptions  # noqa: E402
from distprof_runs.workloads.model import MixtureOfExperts, MoeSettings, Transformer  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

OPTIONS = ProbeOptions(measure_overhead=False)
MODEL = ModelOptions(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, sequence=4, vocabulary=16)
MOE = MoeSettings(experts=4, top_k=2)


def _session(folder: Path) -> Session:
    return Session(folder, options=OPTIONS, probes=[MoeRoutingProbe()])


def _records(folder: Path) -> list[MoeRecord]:
    _, *lines = (folder / "rank00000" / "moe.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=MoeRecord) for line in lines]


def _model() -> Any:
    torch.manual_seed(0)
    return Transformer(MODEL.resolved(), MOE)


def _tokens() -> Any:
    return torch.arange(12).reshape(3, 4) % 16


def test_what_is_handed_over_is_written_as_it_is(tmp_path: Path) -> None:
    session = _session(tmp_path)
    session.step()
    session.record_routing(
        5,
        torch.tensor([3, 0, 4, 1]),
        num_tokens=4,
        top_k=2,
        capacity=3,
        dropped=torch.tensor(1),
        aux_loss=torch.tensor(1.25, dtype=torch.bfloat16),
    )
    session.record_routing("last", [8, 0], num_tokens=8, top_k=1, micro_batch=7)
    session.close()
    assert _records(tmp_path) == [
        MoeRecord(
            step=1,
            layer="5",
            micro_batch=0,
            tokens_per_expert=(3, 0, 4, 1),
            num_tokens=4,
            top_k=2,
            capacity=3,
            dropped=1,
            aux_loss=1.25,
        ),
        MoeRecord(
            step=1, layer="last", micro_batch=7, tokens_per_expert=(8, 0), num_tokens=8, top_k=1
        ),
    ]


def test_layers_are_found_by_their_watchers_and_named_as_in_the_model(tmp_path: Path) -> None:
    session = _session(tmp_path)
    model = _model()
    session.watch(model)
    model(_tokens())
    session.close()
    records = _records(tmp_path)
    assert [record.layer for record in records] == [
        "blocks.0.feed_forward",
        "blocks.1.feed_forward",
    ]
    for record in records:
        assert len(record.tokens_per_expert) == 4
        assert sum(record.tokens_per_expert) == 12 * 2
        assert (record.num_tokens, record.top_k, record.dropped) == (12, 2, 0)
        assert record.aux_loss is not None


def test_micro_batches_are_counted_per_layer_and_begin_anew_with_each_step(tmp_path: Path) -> None:
    session = _session(tmp_path)
    model = _model()
    session.watch(model)
    for _ in range(2):
        model(_tokens())
        model(_tokens())
        session.step()
    session.close()
    seen = [(record.step, record.micro_batch) for record in _records(tmp_path)]
    assert seen == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_activations_are_not_counted_twice(tmp_path: Path, use_reentrant: bool) -> None:
    session = _session(tmp_path)
    layer = MixtureOfExperts(MODEL.resolved(), MOE)
    session.watch(layer)
    x = torch.randn(1, 4, 8, requires_grad=True)
    checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    session.close()
    assert x.grad is not None
    (record,) = _records(tmp_path)
    assert record.layer == "MixtureOfExperts"


def test_evaluation_is_not_training(tmp_path: Path) -> None:
    session = _session(tmp_path)
    model = _model()
    session.watch(model)
    model.eval()
    with torch.no_grad():
        model(_tokens())
    session.close()
    assert not (tmp_path / "rank00000" / "moe.jsonl").exists()


def test_no_watcher_is_left_behind(tmp_path: Path) -> None:
    session = _session(tmp_path)
    model = _model()
    session.watch(model)
    layers = [block.feed_forward for block in model.blocks.values()]
    assert [len(layer.watchers) for layer in layers] == [1, 1]
    session.close()
    assert [len(layer.watchers) for layer in layers] == [0, 0]


def test_nothing_is_written_while_paused(tmp_path: Path) -> None:
    probe = MoeRoutingProbe()
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    model = _model()
    session.watch(model)
    probe.pause()
    model(_tokens())
    probe.resume()
    model(_tokens())
    session.close()
    assert len(_records(tmp_path)) == 2


def test_a_watched_layer_with_odd_routings_trains_on(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.watchers: list[Any] = []

    session = _session(tmp_path)
    layer = Odd()
    session.watch(layer)
    for watcher in list(layer.watchers):
        watcher("not a routing")
    session.close()
    (status,) = [status for status in session.status() if status.name == "moe_routing"]
    assert "stopped watching: AttributeError" in status.reason
    assert status.num_dropped == 1


def test_the_outputs_are_the_same_with_and_without_a_watcher(tmp_path: Path) -> None:
    model = _model()
    alone = model(_tokens())
    session = _session(tmp_path)
    session.watch(model)
    watched = model(_tokens())
    session.close()
    assert torch.equal(alone, watched)


@pytest.mark.gpu
def test_counts_on_a_gpu_are_copied_without_waiting(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    session = _session(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        counts = torch.ones(4, dtype=torch.int64, device="cuda")
        session.record_routing(0, counts, num_tokens=2, top_k=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    session.close()
    assert _records(tmp_path)[0].tokens_per_expert == (1, 1, 1, 1)


def test_a_compiled_layer_keeps_its_one_graph(tmp_path: Path) -> None:
    """What the compiler sees of the watcher must not break the graph; nothing is recorded then."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.watchers: list[Any] = []

        def forward(self, x: Any) -> Any:
            for watcher in self.watchers:
                watcher(x)
            return x * 2

    session = _session(tmp_path)
    layer = Layer()
    session.watch(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    session.close()
    assert not (tmp_path / "rank00000" / "moe.jsonl").exists()
