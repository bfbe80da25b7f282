"""tp, pp, moe, cp and 3d on real ranks: the losses of one process, and what theory says moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from distprof_runs.model_parallel_options import MoeOptions, ThreeDOptions
from distprof_runs.options import WorkloadOptions
from distprof_runs.workloads.alone import losses_alone
from distprof_runs.workloads.model import MoeSettings

from distprof.terms import CollectiveKind
from tests.reference_runs.ranks import Call, Seen, Variant, run_variants
from tests.reference_runs.volumes import Volume, add_up, expected_volumes, members_along
from tests.warm import Starter

pytestmark = pytest.mark.distributed

EXACT, ROUGH = 1e-5, 1e-2  # relative; rough for computation in bfloat16


def variant(
    name: str,
    workload: str,
    *,
    training: Mapping[str, object] | None = None,
    model: Mapping[str, object] | None = None,
    **options: object,
) -> Variant:
    sections = {
        "training": {"steps": 3, **(training or {})},
        "model": {"layers": 2, "hidden": 32, "ffn": 64, **(model or {})},
        workload: options,
    }
    return Variant(name=name, workload=workload, sections=sections)


GROUPED = {"heads": 8, "kv_heads": 4}
SWITCHES = {"micro_batches": 2, "clip_grad_norm": 0.5, "checkpoint_activations": True}
PIPELINE = {"micro_batches": 4, "batch": 1}
SMOOTH = {**SWITCHES, **PIPELINE}
BF16 = {"precision": "bf16"}
EIGHT = {"layers": 8}

TP = [
    variant("tp", "tp"),
    variant("tp sequence", "tp", sequence_parallel=True),
    variant("tp partial norms", "tp", sequence_parallel=True, partial_norm_gradients=True),
    variant("tp loss", "tp", loss_parallel=True),
    variant("tp sequence, loss", "tp", sequence_parallel=True, loss_parallel=True),
    variant("tp switches", "tp", training=SWITCHES, model=GROUPED),
    variant("tp sequence, switches", "tp", training=SWITCHES, sequence_parallel=True),
    variant("tp bf16", "tp", training=BF16, sequence_parallel=True),
]
MOE = [
    variant("moe", "moe"),
    variant("moe switches", "moe", training=SWITCHES, top_k=1),
    variant("moe capacity", "moe", training={"batch": 4}, capacity_factor=1.0, skew=4.0),
    variant("moe bf16", "moe", training=BF16),
]
CP = [
    variant("ring", "cp"),
    variant("ring switches", "cp", training=SWITCHES, model=GROUPED),
    variant("ring contiguous", "cp", zigzag=False),
    variant("ring bf16", "cp", training=BF16),
    variant("ulysses", "cp", model=GROUPED, method="ulysses"),
    variant("ulysses switches", "cp", training=SWITCHES, method="ulysses"),
]
PP = [
    *(
        variant(f"pp {name}", "pp", training=PIPELINE, model=EIGHT, schedule=name)
        for name in ("gpipe", "looped-bfs", "interleaved-1f1b", "interleaved-zb")
    ),
    variant("pp 1f1b", "pp", training=SMOOTH, model={"layers": 4}),
    variant("pp zbv", "pp", training=SMOOTH, model=EIGHT, schedule="zbv"),
    variant(
        "pp dualpipev",
        "pp",
        training={**PIPELINE, "micro_batches": 8},
        model=EIGHT,
        schedule="dualpipev",
    ),
    variant("pp bf16", "pp", training={**PIPELINE, **BF16}, model={"layers": 4}),
]
THREE_D = [
    variant("pp split", "pp", training=PIPELINE, model={"layers": 7}, split="1,2,3,1"),
    variant("pp x tp", "3d", training=PIPELINE, fsdp=1),
    variant("pp x fsdp", "3d", training=SMOOTH, tp=1),
    variant(
        "interleaved x fsdp",
        "3d",
        training=PIPELINE,
        model={"layers": 4},
        tp=1,
        schedule="interleaved-zb",
    ),
    variant("pp x dp", "3d", training=PIPELINE, tp=1, dp=2, fsdp=1),
    variant("fsdp x tp", "3d", training=SMOOTH, pp=1),
    variant("tp outside", "3d", training=PIPELINE, pp=1, order="tp,fsdp,dp,pp"),
    variant("dp x tp", "3d", training=PIPELINE, pp=1, dp=2, fsdp=1),
    variant("dp x fsdp", "3d", training=PIPELINE, pp=1, tp=1, dp=2),
    variant("dp x ep", "3d", training=SMOOTH, pp=1, tp=1, dp=2, ep=2, experts=4),
    variant("tp x ep", "3d", training=PIPELINE, pp=1, ep=2, experts=4),
    variant("sharded experts", "3d", training=PIPELINE, pp=1, experts=4),
    variant("pp x ep bf16", "3d", training={**PIPELINE, **BF16}, tp=1, ep=2, experts=4),
]
ON_FOUR = ("tp sequence, loss", "moe capacity", "ring switches", "ring contiguous", "ulysses")
CASES = {
    2: [*TP, *MOE, *CP, *PP],
    4: [*(item for item in (*TP, *MOE, *CP) if item.name in ON_FOUR), *PP[:-1], *THREE_D],
    8: [
        variant("pp x fsdp x tp", "3d", training=SMOOTH),
        variant("pp x tp x ep", "3d", training=PIPELINE, ep=2, experts=4),
    ],
}
ALL = [(size, item) for size, items in CASES.items() for item in items]

# In every run stays each workload, switch and schedule on some number of ranks, and each pair of
# axes in some mesh; nightly the same on the other number, or without the switches. Eight ranks run
# in tests/e2e/test_workloads.py.
NIGHTLY = {
    2: {
        *("tp", "tp sequence", "tp loss", "moe", "moe capacity"),
        *("ring", "ring contiguous", "ulysses"),
        *("pp gpipe", "pp interleaved-1f1b", "pp 1f1b"),
    },
    4: {
        *("tp sequence, loss", "ring switches", "tp outside"),
        *("pp looped-bfs", "pp interleaved-zb", "pp dualpipev", "pp zbv"),
        *("pp x fsdp", "dp x tp", "dp x fsdp", "sharded experts"),
    },
    8: {"pp x fsdp x tp", "pp x tp x ep"},
}
IN_FLOAT32 = [(size, item) for size, item in ALL if "bf16" not in item.name]


def cases(these: Sequence[tuple[int, Variant]]) -> pytest.MarkDecorator:
    """A test for each of these, those of ``NIGHTLY`` marked."""
    return pytest.mark.parametrize(
        ("ranks", "asked"),
        [
            pytest.param(
                *each,
                id=f"{each[1].name}-{each[0]}",
                marks=[pytest.mark.nightly] * (each[1].name in NIGHTLY[each[0]]),
            )
            for each in these
        ],
    )


Outcome = Mapping[str, Sequence[Seen]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, started_warm: Starter
) -> Mapping[int, Outcome]:
    """What ranks saw of the variants that are asked for in this session."""
    return {
        size: run_variants(tmp_path_factory.mktemp(f"ranks{size}"), items, size, started_warm)
        for size, items in asked_for(request.session.items).items()
    }


def asked_for(items: Sequence[pytest.Item]) -> Mapping[int, Sequence[Variant]]:
    """Variants of the tests that were chosen, by number of ranks."""
    found = [
        item.callspec.params
        for item in items
        if isinstance(item, pytest.Function)
        and item.path == Path(__file__)
        and hasattr(item, "callspec")
    ]
    names = {(params["ranks"], params["asked"].name) for params in found}
    chosen = {
        size: [each for each in each_of if (size, each.name) in names]
        for size, each_of in CASES.items()
    }
    return {size: each_of for size, each_of in chosen.items() if each_of}


def alone(asked: Variant, ranks: int) -> list[float]:
    configuration = asked.configuration()
    options = configuration.workload
    parts, moe, weight = 1, None, 0.0
    if isinstance(options, MoeOptions):
        parts, weight = ranks, options.aux_loss_weight
        moe = MoeSettings(
            experts=options.experts,
            top_k=options.top_k,
            capacity_factor=options.capacity_factor,
            skew=options.skew,
        )
    if isinstance(options, ThreeDOptions):
        parts = ranks // options.pp // options.tp
        if options.experts:
            moe = MoeSettings(experts=options.experts, top_k=options.top_k)
    return losses_alone(
        configuration.model,
        configuration.training,
        num_data_parts=parts,
        moe=moe,
        aux_loss_weight=weight,
    )


@cases(ALL)
def test_losses_are_those_of_one_process(
    ranks: int, asked: Variant, outcome: Mapping[int, Outcome]
) -> None:
    of_ranks = [seen.losses for seen in outcome[ranks][asked.name] if seen.losses[0] is not None]
    means = [sum(losses) / len(losses) for losses in zip(*of_ranks, strict=True)]  # type: ignore[arg-type]
    tolerance = ROUGH if "bf16" in asked.name else EXACT
    assert means == pytest.approx(alone(asked, ranks), rel=tolerance)


@cases(IN_FLOAT32)
def test_a_step_moves_what_theory_says(
    ranks: int, asked: Variant, outcome: Mapping[int, Outcome]
) -> None:
    configuration = asked.configuration()
    options = configuration.workload
    of_ranks = outcome[ranks][asked.name]
    for rank, seen in enumerate(of_ranks):
        expected = expected_volumes(
            options,
            configuration.model,
            configuration.training,
            ranks,
            rank,
            routing=dict(enumerate(seen.routing for seen in of_ranks)) if seen.routing else None,
        )
        found = add_up(volume_of(call, rank, options, ranks) for call in seen.calls)
        assert comparable(found, expected) == comparable(expected, expected)


def comparable(volumes: Sequence[Volume], expected: Sequence[Volume]) -> dict[object, object]:
    """Bytes by kind and axis, and counts where theory has one."""
    open_counts = {(each.kind, each.axis) for each in expected if each.count is None}
    return {
        (each.kind, each.axis): (
            each.total_bytes,
            None if (each.kind, each.axis) in open_counts else each.count,
        )
        for each in volumes
    }


def volume_of(call: Call, rank: int, options: WorkloadOptions, ranks: int) -> Volume:
    kind = next(kind for part, kind in KINDS.items() if part in call.name)
    elements = call.sent if kind is CollectiveKind.ALL_TO_ALL else call.numel
    axis = axis_of(call.members, rank, options.mesh(ranks))
    # A norm that clips is one number for all ranks, also where one axis has them all.
    if kind is CollectiveKind.ALL_REDUCE and elements == 1:
        axis = "world"
    return Volume(kind=kind, axis=axis, count=1, total_bytes=elements * call.itemsize)


KINDS = {
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "reduce": CollectiveKind.ALL_REDUCE,
    "gather": CollectiveKind.ALL_GATHER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "send": CollectiveKind.SEND,
    "recv": CollectiveKind.RECV,
}


def axis_of(members: Sequence[int], rank: int, sizes: Mapping[str, int]) -> str:
    """The mesh axis along which ``members`` lie."""
    for axis in sizes:
        if list(members) == members_along(axis, rank, sizes):
            return axis
    assert len(members) == math.prod(sizes.values())
    return "world"
