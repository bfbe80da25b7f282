"""ddp and fsdp on real ranks: the losses of one process, and the collectives that theory gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
import torch
from distprof_runs.workloads.alone import losses_alone

from tests.reference_runs.ranks import Seen, Variant, run_variants
from tests.warm import Starter

pytestmark = pytest.mark.distributed

# Sizes of the model in these tests, by hand: hidden 64, 4 layers, ffn 128, vocabulary 64.
BLOCK = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64  # attention, feed-forward, two norms
N = 4 * BLOCK + 2 * 64 * 64 + 64  # blocks, embedding and output, norm
GATHER, SCATTER, REDUCE = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"


def variant(name: str, workload: str, training: dict[str, object], **options: object) -> Variant:
    return Variant(name=name, workload=workload, sections={"training": training, workload: options})


THREE = {"micro_batches": 3}
CLIPPED = {"micro_batches": 2, "clip_grad_norm": 0.5}
TWO_RANKS = [
    variant("ddp", "ddp", {}),
    variant("ddp small buckets", "ddp", CLIPPED, bucket_mb=0.01),
    variant("ddp accumulation", "ddp", THREE),
    variant("ddp without no_sync", "ddp", THREE, no_sync=False),
    variant(
        "ddp static graph", "ddp", {**THREE, "checkpoint_activations": True}, static_graph=True
    ),
    variant("ddp fp16", "ddp", {}, hook="fp16"),
    variant("ddp bf16", "ddp", {}, hook="bf16"),
    variant("ddp autocast", "ddp", {"precision": "bf16"}),
    variant("ddp all of topk", "ddp", {}, hook="topk", topk_ratio=1.0),
    variant("ddp topk", "ddp", {}, hook="topk", topk_ratio=0.05),
    variant("ddp powersgd", "ddp", {}, hook="powersgd"),
    variant("zero 3", "fsdp", {}),
    variant("zero 3 accumulation", "fsdp", {**CLIPPED, "checkpoint_activations": True}),
    variant("zero 3 no_sync", "fsdp", {"micro_batches": 2}, no_sync=True),
    variant("zero 3 without prefetch", "fsdp", {}, prefetch=False),
    variant("zero 3 flat", "fsdp", {}, flat=True),
    variant("zero 3 bf16", "fsdp", {"precision": "bf16"}),
    variant("zero 2", "fsdp", {}, zero="2"),
    variant("zero 1", "fsdp", CLIPPED, zero="1"),
    variant("sleep", "fsdp", {"compute": "sleep", "forward_ms": 1.0, "backward_ms": 2.0}),
]
FOUR_RANKS = [
    variant("hybrid", "fsdp", {"clip_grad_norm": 0.5}, replicas=2),
    variant("ddp", "ddp", {}),
]
EXACT = 1e-6
LOSSY = {
    "ddp fp16": 1e-4,
    "ddp bf16": 1e-3,
    "ddp autocast": 1e-2,
    "ddp topk": 1e-2,
    "ddp powersgd": 1e-2,
    "zero 3 bf16": 1e-2,
}
AGREES = [item.name for item in TWO_RANKS if item.name != "sleep"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def of_two(
    tmp_path_factory: pytest.TempPathFactory, started_warm: Starter
) -> Mapping[str, list[Seen]]:
    return run_variants(tmp_path_factory.mktemp("two"), TWO_RANKS, 2, started_warm)


@pytest.fixture(scope="module")
def of_four(
    tmp_path_factory: pytest.TempPathFactory, started_warm: Starter
) -> Mapping[str, list[Seen]]:
    return run_variants(tmp_path_factory.mktemp("four"), FOUR_RANKS, 4, started_warm)


def alone(asked: Variant, parts: int) -> list[float]:
    configuration = asked.configuration()
    return losses_alone(configuration.model, configuration.training, num_data_parts=parts)


def mean_losses(ranks: list[Seen]) -> list[float]:
    steps = zip(*(seen.losses for seen in ranks), strict=True)
    return [sum(loss for loss in losses if loss is not None) / len(ranks) for losses in steps]


def moved(seen: Seen) -> dict[tuple[str, int, int], int]:
    """Elements by kind of collective, bytes per element and size of group."""
    total: Counter[tuple[str, int, int]] = Counter()
    for call in seen.calls:
        total[call.name, call.itemsize, call.ranks] += call.numel
    return dict(total)


@pytest.mark.parametrize("name", AGREES)
def test_losses_are_those_of_one_process(name: str, of_two: Mapping[str, list[Seen]]) -> None:
    asked = next(item for item in TWO_RANKS if item.name == name)
    expected = alone(asked, 2)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3)  # the updates do something
    assert mean_losses(of_two[name]) == pytest.approx(expected, rel=LOSSY.get(name, EXACT))


@pytest.mark.parametrize("asked", FOUR_RANKS, ids=lambda item: item.name)
def test_losses_on_four_ranks_are_those_of_one_process(
    asked: Variant, of_four: Mapping[str, list[Seen]]
) -> None:
    assert mean_losses(of_four[asked.name]) == pytest.approx(alone(asked, 4), rel=EXACT)


def test_each_rank_trains_on_its_own_part(of_two: Mapping[str, list[Seen]]) -> None:
    first, second = (seen.losses for seen in of_two["ddp"])
    assert first != second


def test_compression_changes_what_is_learnt(of_two: Mapping[str, list[Seen]]) -> None:
    assert mean_losses(of_two["ddp topk"]) != pytest.approx(mean_losses(of_two["ddp"]), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ddp", {(REDUCE, 4, 2): N}),
        ("ddp small buckets", {(REDUCE, 4, 2): N}),
        ("ddp accumulation", {(REDUCE, 4, 2): N}),
        ("ddp without no_sync", {(REDUCE, 4, 2): 3 * N}),
        ("ddp static graph", {(REDUCE, 4, 2): N}),
        ("ddp fp16", {(REDUCE, 2, 2): N}),
        ("ddp bf16", {(REDUCE, 2, 2): N}),
        ("ddp topk", {(GATHER, 4, 2): 2 * 2 * int(0.05 * N)}),
        ("zero 3", {(GATHER, 4, 2): 2 * N, (SCATTER, 4, 2): N}),
        (
            "zero 3 accumulation",
            {(GATHER, 4, 2): 4 * N, (SCATTER, 4, 2): 2 * N, (REDUCE, 4, 2): 1},
        ),
        ("zero 3 no_sync", {(GATHER, 4, 2): 4 * N, (SCATTER, 4, 2): N}),
        ("zero 3 without prefetch", {(GATHER, 4, 2): 2 * N, (SCATTER, 4, 2): N}),
        ("zero 3 flat", {(GATHER, 4, 2): 2 * N, (SCATTER, 4, 2): N}),
        ("zero 3 bf16", {(GATHER, 2, 2): 2 * N, (SCATTER, 2, 2): N}),
        ("zero 2", {(GATHER, 4, 2): N, (SCATTER, 4, 2): N}),
        ("zero 1", {(REDUCE, 4, 2): N, ("broadcast_", 4, 2): N}),
    ],
)
def test_a_step_moves_what_theory_says(
    name: str, expected: dict[tuple[str, int, int], int], of_two: Mapping[str, list[Seen]]
) -> None:
    for seen in of_two[name]:
        assert moved(seen) == expected


def test_hybrid_sharding_reduces_shards_across_replicas(of_four: Mapping[str, list[Seen]]) -> None:
    for seen in of_four["hybrid"]:
        assert moved(seen) == {
            (GATHER, 4, 2): 2 * N,
            (SCATTER, 4, 2): N,
            (REDUCE, 4, 2): N // 2,
            (REDUCE, 4, 4): 1,  # the norm that clips
        }


def test_smaller_buckets_are_more_collectives(of_two: Mapping[str, list[Seen]]) -> None:
    assert len(of_two["ddp"][0].calls) == 1
    assert len(of_two["ddp small buckets"][0].calls) > 4


@pytest.mark.parametrize(("name", "groups"), [("zero 3", 5), ("zero 3 flat", 1)])
def test_each_block_and_the_rest_is_a_group_unless_flat(
    name: str, groups: int, of_two: Mapping[str, list[Seen]]
) -> None:
    calls = Counter(call.name for call in of_two[name][0].calls)
    assert calls == {GATHER: 2 * groups, SCATTER: groups}


def test_blocks_that_sleep_still_have_weights_to_gather(of_two: Mapping[str, list[Seen]]) -> None:
    size = 4 * 64 * 64 + 2 * 64 * 64 + 64
    assert moved(of_two["sleep"][0]) == {(GATHER, 4, 2): 2 * size, (SCATTER, 4, 2): size}
