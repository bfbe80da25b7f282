"""Programs of other people's libraries, faults in them, and what a report must say.

Shared by the tests and by ``benchmarks/programs.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.e2e.accusations import ACCUSING

__all__ = [
    "FAULTS",
    "LIMIT_S",
    "PROGRAMS",
    "Fault",
    "Program",
    "accused",
    "is_explained",
    "is_named",
    "losses",
]

LIMIT_S = 600
STEPS = 36

_LINE = re.compile(r"program rank=(\d+) step=(\d+) loss=(\S+)")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script that trains with a library, unchanged, and logs the loss of each step.

    Args:
        name: For people.
        script: In ``scripts/``.
        arguments: Of the script.
        needs: Modules that it imports.
        ranks: Processes that torchrun starts; the script itself starts them if ``starts_ranks``.
        fewest_ranks: With which it still works.
        starts_ranks: Whether it needs no torchrun.
        axes: Axis of the process groups that a report must name, by the number of their members.
        faults: Kinds that the benchmark injects.
        loader_workers: Processes that load its batches ahead. They hide a loader that is late by
            less than a step, and then no report should name it: here it is late by more.
        is_stable: Whether two runs have the same losses, to the last bit.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ranks: int = 2
    fewest_ranks: int = 1
    starts_ranks: bool = False
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    loader_workers: int = 0
    is_stable: bool = True

    def struck_by(self, kind: str) -> Fault:
        """The fault of that kind, large enough to lengthen this program's steps."""
        fault = FAULTS[kind]
        if kind == "late-loader":
            return replace(fault, amount=fault.amount * (1 + self.loader_workers))
        return fault


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What befalls a rank, and how a finding may say so.

    Args:
        kind: As ``scripts/common.py`` calls it.
        amount: Seconds, matrix products, processes or objects.
        words: Of a finding that names the cause.
        rank: Which one is struck.
    """

    kind: str
    amount: float
    words: tuple[str, ...]
    rank: int = 1

    @property
    def setting(self) -> str:
        """For the environment."""
        return f"{self.kind}:{self.rank}:{self.amount:g}"


FAULTS = {
    fault.kind: fault
    for fault in (
        Fault(
            kind="late-loader",
            amount=0.02,
            words=("Its input arrives late", "for input", "waits for data"),
        ),
        Fault(kind="sleeping-host", amount=0.06, words=("Its CPU launches late", "for its CPU")),
        Fault(kind="extra-matmul", amount=60, words=("It has more work", "works")),
        Fault(kind="throttled-core", amount=2, words=("take the CPU of",)),
        Fault(kind="collecting", amount=400_000, words=("garbage collector",)),
    )
}

_ALL = tuple(FAULTS)
# A batch that no data loader makes looks like any other work of the host.
_OF_HOSTS = ("sleeping-host", "extra-matmul", "throttled-core", "collecting")

PROGRAMS = {
    program.name: program
    for program in (
        Program(name="FSDP2", script="fsdp2.py", needs=("transformers",), faults=_ALL),
        Program(
            name="accelerate",
            script="accelerate_loop.py",
            needs=("accelerate", "transformers"),
            faults=_ALL,
        ),
        Program(name="HF Trainer", script="hf_trainer.py", needs=("transformers",), faults=_ALL),
        Program(
            name="HF Trainer, DeepSpeed",
            script="hf_trainer.py",
            arguments=("--zero",),
            needs=("transformers", "deepspeed"),
            faults=_ALL,
        ),
        Program(name="TRL", script="trl_sft.py", needs=("trl",), faults=_OF_HOSTS),
        Program(
            name="Lightning",
            script="lightning_ddp.py",
            needs=("lightning", "transformers"),
            faults=_ALL,
        ),
        Program(
            name="DeepSpeed",
            script="deepspeed_zero.py",
            needs=("deepspeed", "transformers"),
            faults=_ALL,
            loader_workers=2,
        ),
        Program(
            name="nanoGPT's loop",
            script="nanogpt_loop.py",
            needs=("transformers",),
            faults=_OF_HOSTS,
        ),
        Program(name="minGPT-ddp", script="mingpt_ddp.py", needs=("transformers",), faults=_ALL),
        Program(name="ring attention", script="ring_attention.py", faults=_OF_HOSTS),
        Program(
            name="sequence parallel",
            script="sequence_parallel.py",
            axes={2: ("world",)},  # its mesh is the world and has no name: torch takes that group
            faults=_OF_HOSTS,
        ),
        Program(
            name="pipelining",
            script="pipelining.py",
            fewest_ranks=2,
            axes={2: ("pp", "world")},
            faults=_OF_HOSTS,
        ),
        Program(name="GPipe by hand", script="gpipe_by_hand.py", fewest_ranks=2, faults=_OF_HOSTS),
        Program(
            name="TP2 x DP2 by hand",
            script="tensor_and_data.py",
            ranks=4,
            fewest_ranks=2,
            axes={2: ("dp", "tp")},
            faults=_OF_HOSTS,
        ),
        Program(
            name="Ray Train",
            script="ray_train.py",
            needs=("ray", "transformers"),
            fewest_ranks=2,
            starts_ranks=True,
            faults=_OF_HOSTS,
        ),
        Program(
            name="Megatron-core",
            script="megatron_mlp.py",
            needs=("megatron.core",),
            ranks=4,
            fewest_ranks=2,
            faults=_OF_HOSTS,
        ),
    )
}

Finding = Mapping[str, Any]


def losses(text: str) -> dict[tuple[int, int], str]:
    """By rank and step, as the program logged them."""
    return {(int(rank), int(step)): loss for rank, step, loss in _LINE.findall(text)}


def accused(report: Mapping[str, Any]) -> list[Finding]:
    """Findings that say which rank is to blame.

    A finding on a taken CPU blames none where it says that the machine is busy.
    """
    found = [one for one in report["findings"] if one["code"] in ACCUSING and one["ranks"]]
    taken = [one for one in report["findings"] if one["code"] == "HST110"]
    return found + [one for one in taken if "The machine is busy" not in one["message"]]


def is_named(report: Mapping[str, Any], fault: Fault) -> bool:
    """Whether a finding names the struck rank, and no other with it."""
    return any(tuple(one["ranks"]) == (fault.rank,) for one in accused(report))


def is_explained(report: Mapping[str, Any], fault: Fault) -> bool:
    """Whether such a finding also names the cause."""
    right: Sequence[Finding] = [
        one for one in accused(report) if tuple(one["ranks"]) == (fault.rank,)
    ]
    return any(word in one["message"] for one in right for word in fault.words)
