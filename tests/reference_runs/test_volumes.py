"""The expectation itself, against numbers worked out by hand and those of the formula sheet."""

from __future__ import annotations

import pytest
from distprof_runs.model_parallel_options import (
    CpOptions,
    MoeOptions,
    PpOptions,
    ThreeDOptions,
    TpOptions,
)
from distprof_runs.options import (
    DdpOptions,
    FsdpOptions,
    ModelOptions,
    TrainingOptions,
    WorkloadOptions,
)
from msgspec.structs import replace

from distprof.costs.collectives import bus_factor
from distprof.terms import CollectiveKind
from tests.reference_runs.volumes import Volume, expected_volumes, num_parameters

# B = 2, S = 8, H = 16, 4 heads, F = 32, V = 64, L = 4: an activation has 2·8·16·4 = 1024 bytes.
MODEL = ModelOptions(
    layers=4, hidden=16, heads=4, kv_heads=4, ffn=32, sequence=8, vocabulary=64
).resolved()
ONE = TrainingOptions(batch=2)
# attention 4·16² = 1024, feed-forward 3·16·32 = 1536, norms 32; embedding, output 1024, norm 16
N = 4 * (1024 + 1536 + 32) + 2 * 1024 + 16
AR, AG, RS = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
A2A, SEND, RECV = CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND, CollectiveKind.RECV


def volume(kind: CollectiveKind, axis: str, count: int | None, total_bytes: int) -> Volume:
    return Volume(kind=kind, axis=axis, count=count, total_bytes=total_bytes)


CASES = [
    (DdpOptions(), {}, [volume(AR, "dp_replicate", None, 4 * N)]),
    (
        FsdpOptions(),
        {},
        [volume(AG, "dp_shard", 10, 8 * N), volume(RS, "dp_shard", 5, 4 * N)],
    ),
    (
        FsdpOptions(replicas=2, zero="2"),
        {},
        [
            volume(AR, "dp_replicate", 5, 2 * N),
            volume(AG, "dp_shard", 5, 4 * N),
            volume(RS, "dp_shard", 5, 4 * N),
        ],
    ),
    (TpOptions(), {}, [volume(AR, "tp", 16, 16 * 1024)]),
    (
        TpOptions(sequence_parallel=True),
        {"micro_batches": 2},
        [
            volume(AR, "tp", 1, 9 * 16 * 4),
            volume(AG, "tp", 2 * 18, 2 * 18 * 1024),
            volume(RS, "tp", 2 * 16, 2 * 16 * 1024),
        ],
    ),
    (
        PpOptions(),
        {"micro_batches": 8},
        [volume(SEND, "pp", 8, 8 * 1024), volume(RECV, "pp", 8, 8 * 1024)],
    ),
    (
        MoeOptions(experts=4, top_k=2),
        {},
        [
            volume(AR, "ep", None, 4 * (N - 4 * 1536 + 4 * 4 * 16)),
            volume(A2A, "ep", 4 * 5, 4 * (4 * 8 + 4 * 2 * 16 * 16 * 4)),
        ],
    ),
    (
        CpOptions(),
        {},
        [
            volume(AR, "cp", None, 4 * N),
            volume(SEND, "cp", 4 * 9, 4 * 9 * 2 * 256),
            volume(RECV, "cp", 4 * 9, 4 * 9 * 2 * 256),
        ],
    ),
    (
        CpOptions(method="ulysses"),
        {},
        [volume(AR, "cp", None, 4 * N), volume(A2A, "cp", 4 * 8, 4 * 8 * 256)],
    ),
    (
        ThreeDOptions(fsdp=1),
        {"micro_batches": 4, "clip_grad_norm": 1.0},
        [
            volume(AR, "tp", 2 * 4 * 4, 2 * 4 * 4 * 1024),
            volume(AR, "world", 1, 4),
            volume(SEND, "pp", 4, 4 * 1024),
            volume(RECV, "pp", 4, 4 * 1024),
        ],
    ),
]


@pytest.mark.parametrize(
    ("options", "training", "expected"), CASES, ids=lambda item: getattr(item, "name", None)
)
def test_a_step_of_rank_0_of_4(
    options: WorkloadOptions, training: dict[str, float], expected: list[Volume]
) -> None:
    assert expected_volumes(options, MODEL, replace(ONE, **training), 4, 0) == expected


def test_stages_in_the_middle_have_two_boundaries() -> None:
    training = replace(ONE, micro_batches=8)
    of_ranks = [expected_volumes(PpOptions(), MODEL, training, 4, rank) for rank in range(4)]
    assert [volumes[0].count for volumes in of_ranks] == [8, 16, 16, 8]


def test_rows_follow_the_routing_and_stop_at_capacity() -> None:
    """Rank 0 has experts 0 and 1, 16 tokens; capacity is 1.0 · 1 · 16 / 4 = 4 of each expert."""
    options = MoeOptions(experts=4, top_k=1, capacity_factor=1.0)
    model = replace(MODEL, layers=1)
    routing = {0: [[10, 3, 2, 1]], 1: [[0, 16, 0, 0]]}
    found = expected_volumes(options, model, ONE, 2, 0, routing)
    # sends 4+3+2+1 = 10 rows; gets 4+3 of its own and 0+4 of the other
    (data,) = [each for each in found if each.kind is A2A]
    assert data.total_bytes == 4 * 8 + 2 * (10 + 11) * 16 * 4


def test_check_values_of_the_formula_sheet() -> None:
    """Their elements have 2 bytes, those of the expectation 4."""
    wide = replace(MODEL, layers=96, hidden=12288, heads=96, kv_heads=96, sequence=2048)
    (reductions,) = expected_volumes(TpOptions(), wide, replace(ONE, batch=1), 8, 0)
    sent = reductions.total_bytes / 2 * bus_factor(AR, 8)
    assert sent == pytest.approx(33.8e9, rel=1e-3)
    assert sent / 96 == pytest.approx(352.3e6, rel=1e-3)
    long = replace(MODEL, layers=8, hidden=8192, sequence=2048)
    of_ranks = [
        expected_volumes(PpOptions(), long, TrainingOptions(batch=16, micro_batches=32), 8, rank)
        for rank in range(8)
    ]
    moved = sum(each.total_bytes for volumes in of_ranks for each in volumes if each.kind is SEND)
    assert moved / 2 == pytest.approx(240.5e9, rel=1e-3)
    assert moved / 2 / 7 / 32 == pytest.approx(1.074e9, rel=1e-3)


def test_presets_have_the_size_of_their_names() -> None:
    """7b and 13b are Llama 2's published counts, 70b is Llama 3's."""
    billions = {
        name: num_parameters(ModelOptions(preset=name).resolved()) / 1e9
        for name in ("125m", "1b", "7b", "13b", "70b")
    }
    assert billions == pytest.approx(
        {"125m": 0.134, "1b": 1.5, "7b": 6.738, "13b": 13.016, "70b": 70.554}, rel=2e-3
    )
