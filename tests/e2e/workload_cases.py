"""The reference runs whose reports are compared with theory, and the theory of each.

Models are as small as the shapes allow: what is asserted are groups, counts and bytes, not times.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distprof_runs.configuration import Configuration
from distprof_runs.model_parallel_options import MoeOptions, ThreeDOptions
from distprof_runs.workloads.alone import losses_alone
from distprof_runs.workloads.model import MoeSettings

from distprof.artefacts import RANK_DIR_FORMAT
from distprof.terms import CollectiveKind
from tests.e2e.jobs import Job
from tests.reference_runs.volumes import Routing, expected_volumes

__all__ = [
    "ALL",
    "NIGHTLY",
    "TRACED_STEPS",
    "Case",
    "Moved",
    "configuration_of",
    "expected_losses",
    "moved_by_theory",
    "recorded_losses",
]

TRACED_STEPS = 3
SIZES = {"hidden": 64, "heads": 4, "kv-heads": 4, "ffn": 128, "sequence": 32, "vocabulary": 128}
QUICK = ("--steps", "6", "--profile-steps", str(TRACED_STEPS), "--profile-warmup", "2")
SLEEP = ("--compute", "sleep", "--forward-ms", "2", "--backward-ms", "4")
TWO_STAGES = ("--layers", "8", "--micro-batches", "8", "--batch", "1")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One reference run.

    Args:
        workload: Its name.
        ranks: On one node.
        options: Command-line options, in addition to the small sizes.
        strategy: As the report must call it.
    """

    workload: str
    ranks: int
    options: tuple[str, ...] = ()
    strategy: str

    @property
    def name(self) -> str:
        """For people who read which test failed."""
        told = (
            " ".join(self.options)
            .removesuffix(" ".join(SLEEP))
            .removesuffix(" ".join(TWO_STAGES) + " ")
        )
        return f"{self.workload}-{self.ranks} {told}".strip()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of ``distprof run``."""
        sizes = {"layers": 2, "batch": 2, **SIZES}
        small = [part for key, size in sizes.items() for part in (f"--{key}", str(size))]
        ranks = ("--ranks", str(self.ranks))
        return (self.workload, *ranks, "--no-measure-overhead", *QUICK, *small, *self.options)

    @property
    def computes(self) -> bool:
        """Whether blocks compute rather than sleep, so that there are losses to compare."""
        return "sleep" not in self.options


def _case(workload: str, ranks: int, strategy: str, *options: str) -> Case:
    return Case(workload=workload, ranks=ranks, options=options, strategy=strategy)


def _pipeline(schedule: str, ranks: int) -> Case:
    options = ("--schedule", schedule, *TWO_STAGES, *SLEEP)
    return _case("pp", ranks, f"PP ({schedule})", *options)


ACCUMULATED = ("--micro-batches", "2")
EXPERTS = ("--experts", "4", "--micro-batches", "2")
CASES = [
    _case("ddp", 2, "DDP", "--bucket-mb", "0.1"),
    _case("ddp", 2, "DDP", "--sync", *ACCUMULATED),
    _case("ddp", 2, "DDP (bf16 gradients)", "--hook", "bf16"),
    _case("ddp", 4, "DDP", "--no-sync", *ACCUMULATED),
    _case("fsdp", 2, "FSDP (ZeRO-3)"),
    _case("fsdp", 2, "FSDP (ZeRO-2)", "--zero", "2"),
    _case("fsdp", 2, "DDP (ZeRO-1)", "--zero", "1"),
    _case("fsdp", 4, "FSDP (ZeRO-3)", *ACCUMULATED, "--clip-grad-norm", "0.5"),
    _case("fsdp", 4, "HSDP (ZeRO-3)", "--replicas", "2"),
    _case("tp", 2, "TP"),
    _case("tp", 2, "TP + sequence parallel", "--sequence-parallel"),
    _case("tp", 4, "TP", "--checkpoint-activations"),
    _case("tp", 4, "TP + sequence parallel", "--sequence-parallel", "--loss-parallel"),
    _case("pp", 2, "PP (1f1b)"),
    _case("pp", 4, "PP (gpipe)", "--schedule", "gpipe", *TWO_STAGES),
    _pipeline("zbv", 2),
    *(
        _pipeline(schedule, 4)
        for schedule in ("1f1b", "looped-bfs", "interleaved-1f1b", "interleaved-zb", "dualpipev")
    ),
    _case("moe", 2, "MoE (EP)"),
    _case("moe", 4, "MoE (EP)", "--capacity-factor", "1.0", "--skew", "4.0"),
    _case("cp", 2, "CP (ring)"),
    _case("cp", 2, "CP (ulysses)", "--method", "ulysses"),
    _case("cp", 4, "CP (ring)", "--kv-heads", "2"),
    _case("cp", 4, "CP (ulysses)", "--method", "ulysses"),
    _case("3d", 4, "PP 2 × FSDP 2", "--tp", "1"),
    _case(
        "3d",
        4,
        "DP 2 × FSDP 2 × EP 2",
        "--pp",
        "1",
        "--dp",
        "2",
        "--tp",
        "1",
        "--ep",
        "2",
        *EXPERTS,
    ),
    _case("3d", 8, "PP 2 × FSDP 2 × TP 2", *ACCUMULATED),
]
ALL = {case.name: case for case in CASES}

# In every run stays each workload, two and four ranks, and one mesh of all three axes on eight;
# each switch stays here or in tests/reference_runs.
# Of these, others have the same strategy on more ranks or with more switches, or the schedule:
# test_model_parallel.py and test_data_parallel.py in tests/reference_runs run each on real ranks.
NIGHTLY = {
    *("ddp-2 --bucket-mb 0.1", "tp-2", "tp-4 --sequence-parallel --loss-parallel", "moe-2", "cp-2"),
    *("cp-4 --method ulysses", "pp-4 --schedule 1f1b", "pp-4 --schedule looped-bfs"),
    *("pp-4 --schedule interleaved-zb", "pp-4 --schedule interleaved-1f1b", "3d-4 --tp 1"),
    *("ddp-4 --no-sync --micro-batches 2", "tp-4 --checkpoint-activations"),
    "fsdp-4 --micro-batches 2 --clip-grad-norm 0.5",
    "pp-4 --schedule gpipe --layers 8 --micro-batches 8 --batch 1",
}
assert ALL.keys() >= NIGHTLY


def configuration_of(job: Job) -> Configuration:
    """What the job was told to do."""
    assert job.run is not None, job.stderr
    return Configuration.from_run_file(job.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Collectives of one kind along one axis, all ranks and the steps in question.

    Args:
        count: Each counted once, however many members it has; None where torch decides.
        total_bytes: Full buffers, summed. Members of an all-to-all count with their mean.
    """

    count: int | None
    total_bytes: float


def moved_by_theory(
    job: Job, steps: Sequence[int], axis_of_world: str
) -> dict[tuple[str, str], Moved]:
    """By kind and axis, what the formula sheet says for ``steps``.

    Args:
        job: A finished job.
        steps: Its analysed steps.
        axis_of_world: What the report calls the group of all ranks.
    """
    configuration = configuration_of(job)
    assert job.run is not None
    options, size = configuration.workload, job.run.world_size
    assert size is not None
    mesh = {**job.run.mesh, "world": size, "ep": size}
    counts: Counter[tuple[str, str]] = Counter()
    amounts: Counter[tuple[str, str]] = Counter()
    is_open: set[tuple[str, str]] = set()
    routings = _routings(job, steps) if _has_experts(options) else dict.fromkeys(steps)
    for step in steps:
        for rank in range(size):
            for volume in expected_volumes(
                options, configuration.model, configuration.training, size, rank, routings[step]
            ):
                axis = axis_of_world if volume.axis == "world" else volume.axis
                key = volume.kind.label, axis
                counts[key] += volume.count or 0
                amounts[key] += volume.total_bytes
                is_open |= {key} if volume.count is None else set()
    shares = {key: _members(key, mesh) for key in amounts}
    return {
        key: Moved(
            count=None if key in is_open else counts[key] // shares[key],
            total_bytes=amounts[key] / shares[key],
        )
        for key in amounts
    }


def _members(key: tuple[str, str], mesh: Mapping[str, int]) -> int:
    """Ranks that each see the whole of one collective; a message has one that sends it."""
    is_message = key[0] in (CollectiveKind.SEND.label, CollectiveKind.RECV.label)
    return 1 if is_message else mesh[key[1]]


def _has_experts(options: object) -> bool:
    return isinstance(options, MoeOptions) or (
        isinstance(options, ThreeDOptions) and options.experts > 0
    )


def _routings(job: Job, steps: Sequence[int]) -> dict[int, Routing]:
    """Step to rank to tokens per expert, layer after layer, as the probes recorded them."""
    assert job.run is not None
    found: dict[int, dict[int, list[list[int]]]] = {step: {} for step in steps}
    for rank in range(job.run.world_size or 0):
        file = job.dir / RANK_DIR_FORMAT.format(rank=rank) / "moe.jsonl"
        for line in file.read_text().splitlines()[1:]:
            record = json.loads(line)
            if record["step"] in found:
                routing = found[record["step"]].setdefault(rank, [])
                routing.append(record["tokens_per_expert"])
    return found  # type: ignore[return-value]


def recorded_losses(job: Job) -> list[float]:
    """The job's loss of each step: the mean over ranks that have one."""
    assert job.run is not None
    by_step: dict[int, list[float]] = {}
    for rank in range(job.run.world_size or 0):
        file = job.dir / RANK_DIR_FORMAT.format(rank=rank) / "steps.jsonl"
        for line in file.read_text().splitlines()[1:]:
            record = json.loads(line)
            if "loss" in record:
                by_step.setdefault(record["step"], []).append(record["loss"])
    return [sum(by_step[step]) / len(by_step[step]) for step in sorted(by_step)]


def expected_losses(job: Job) -> list[float]:
    """Those of one process that trains on all of the data."""
    assert job.run is not None
    configuration = configuration_of(job)
    options, parts = configuration.workload, _data_parts(job)
    moe, weight = None, 0.0
    if isinstance(options, MoeOptions):
        weight = options.aux_loss_weight
        moe = MoeSettings(
            experts=options.experts,
            top_k=options.top_k,
            capacity_factor=options.capacity_factor,
            skew=options.skew,
        )
    if isinstance(options, ThreeDOptions) and options.experts:
        moe = MoeSettings(experts=options.experts, top_k=options.top_k)
    return losses_alone(
        configuration.model,
        configuration.training,
        num_data_parts=parts,
        moe=moe,
        aux_loss_weight=weight,
    )


def _data_parts(job: Job) -> int:
    """Ranks that work on tokens of their own."""
    assert job.run is not None
    mesh = job.run.mesh
    parts = 1
    for axis in ("dp_replicate", "dp_shard", "ep"):
        parts *= mesh.get(axis, 1)
    return parts
