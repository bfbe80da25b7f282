"""What the options of tp, moe, cp and 3d refuse, and with which way out."""

from __future__ import annotations

import pytest
from distprof_runs.configuration import Configuration
from distprof_runs.model_parallel_options import (
    CpOptions,
    MoeOptions,
    PpOptions,
    ThreeDOptions,
    TpOptions,
)
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from msgspec.structs import replace

from distprof.errors import UsageError

MODEL = ModelOptions().resolved()  # 4 layers, 8 heads, ffn 1024, sequence 128, vocabulary 1024
MANY = TrainingOptions(micro_batches=8)


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        (TpOptions(), 3, "number of heads 8 cannot be split into 3"),
        (TpOptions(partial_norm_gradients=True), 2, "needs --sequence-parallel"),
        (MoeOptions(experts=6), 4, "--experts 6 cannot be spread evenly over 4"),
        (MoeOptions(top_k=9), 4, "between 1 and 8"),
        (MoeOptions(capacity_factor=-1.0), 2, "0 or more"),
        (CpOptions(), 3, "sequence length 128 cannot be split into 6"),
        (CpOptions(method="ulysses"), 16, "number of heads 8 cannot be split into 16"),
        (ThreeDOptions(), 4, "change one of them"),
        (ThreeDOptions(order="pp,dp"), 8, "name each of"),
        (ThreeDOptions(ep=2), 8, "--experts 8"),
        (ThreeDOptions(fsdp=4, ep=2, experts=8, tp=1), 8, "--ep 4 or --fsdp 2"),
        (ThreeDOptions(schedule="zbv", pp=4, tp=1), 8, "--layers 8"),
    ],
)
def test_refused(options: WorkloadOptions, ranks: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.check(MODEL, MANY, ranks)


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (TpOptions(sequence_parallel=True, loss_parallel=True), 8),
        (PpOptions(), 4),
        (MoeOptions(), 8),
        (CpOptions(), 8),
        (CpOptions(method="ulysses"), 8),
        (ThreeDOptions(), 8),
        (ThreeDOptions(tp=1), 4),
        (ThreeDOptions(fsdp=0, tp=1), 16),
    ],
)
def test_accepted(options: WorkloadOptions, ranks: int) -> None:
    options.check(MODEL, MANY, ranks)


def test_grouped_key_value_heads_limit_ulysses_and_tensor_parallelism() -> None:
    grouped = replace(MODEL, kv_heads=2)
    for options in (CpOptions(method="ulysses"), TpOptions()):
        with pytest.raises(UsageError, match="number of key/value heads 2"):
            options.check(grouped, MANY, 4)
    CpOptions().check(grouped, MANY, 4)  # a ring sends them whole


def test_pipelines_have_more_micro_batches_unless_told_otherwise() -> None:
    assert Configuration.from_sections("pp", {}).training.micro_batches == 8
    assert Configuration.from_sections("tp", {}).training.micro_batches == 1
    given = {"training": {"micro_batches": 2}}
    assert Configuration.from_sections("pp", given).training.micro_batches == 2
