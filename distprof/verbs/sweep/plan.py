"""Plans the runs of a sweep: their order and their arguments."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from distprof.artefacts.summary_file import SweepFile, SweepRun
from distprof.errors import UsageError
from distprof.kernel import available_processors
from distprof.options import whole_number
from distprof.version import __version__

Scaling: TypeAlias = Literal["weak", "strong", "as_given"]
ProgramSweep: TypeAlias = "Callable[[Sequence[str]], dict[str, Any]]"
"""Maps arguments of ``distprof run`` to the full configuration that they select."""
MAX_RUNS = 1_000
MAX_RANKS = 1 << 18
RANKS = "{ranks}"
"""Placeholder for the number of ranks in the command of a user's program."""
WORKLOADS = ("ddp", "fsdp", "tp", "pp", "moe", "cp", "3d")
"""Workloads of ``distprof run``; any other first word is the user's own program."""
_BATCH_PER_RANK = ("ddp", "fsdp", "moe")
"""Workloads in which every rank has its own sequences; in the others, ranks share them."""

_QUICK = (
    ("--measure-overhead", ("--no-measure-overhead",)),
    ("--profile-steps", ("--profile-steps", "4")),
)
"""Defaults for runs of a sweep, which only needs step times and a short trace."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks such as ``1,2,4,8`` into ascending, distinct numbers."""
    found = {whole_number(piece.strip(), most=MAX_RANKS) for piece in text.split(",")}
    sizes = {size for size in found if size}
    if sizes != found:
        raise UsageError(f"{text[:80]!r} is not a list of numbers of ranks such as 1,2,4,8")
    return tuple(sorted(sizes))


def parse_workload(text: str) -> tuple[str, Literal["gpus", "ranks"], tuple[int, ...], list[str]]:
    """Parse ``ddp --ranks 1,2 --device cpu`` into workload, device, sizes and other arguments."""
    words = shlex.split(text)
    if not words or words[0] not in WORKLOADS:
        raise UsageError(f"{text!r} does not begin with a workload: {', '.join(WORKLOADS)}")
    for device in ("ranks", "gpus"):
        flag = f"--{device}"
        for place, word in enumerate(words):
            name, sign, value = word.partition("=")
            if name == flag:
                size = value if sign else (words[place + 1 : place + 2] or [""])[0]
                rest = words[1:place] + words[place + (1 if sign else 2) :]
                return words[0], device, parse_sizes(size), rest
    raise UsageError(f"{text!r} lacks the number of ranks: add --ranks N or --gpus N")


def with_more_repeats(sweep: SweepFile, more: int) -> SweepFile:
    """The sweep with further repeats of every size appended."""
    per_size = {run.ranks: run.arguments for run in sweep.runs}
    first = max(run.repeat for run in sweep.runs) + 1
    added = [run for run in _alternating(per_size, first + more) if run.repeat >= first]
    if len(sweep.runs) + len(added) > MAX_RUNS:
        raise UsageError(f"a sweep has at most {MAX_RUNS:,} runs")
    return replace(sweep, runs=(*sweep.runs, *added))


def plan_workload(
    workload: str,
    sizes: Sequence[int],
    arguments: Sequence[str],
    *,
    repeats: int,
    scaling: Scaling,
    device: Literal["gpus", "ranks"],
    configuration: ProgramSweep,
) -> SweepFile:
    """A sweep of a reference workload.

    ``weak`` keeps the number of sequences per rank, ``strong`` that of all ranks. ``configuration``
    resolves the arguments through the workload, which also checks them.
    """
    quick = [word for flag, words in _QUICK if not _has(arguments, flag) for word in words]
    per_size = {
        size: ("run", workload, f"--{device}", str(size), *arguments, *quick) for size in sizes
    }
    batch = int(configuration(per_size[sizes[0]])["training"]["batch"])
    for size, words in per_size.items():
        per_size[size] = (*words, *_batch(workload, size, sizes, batch, scaling))
    return _sweep(per_size, repeats, workload=workload, scaling=scaling, device=device)


def plan_program(
    command: Sequence[str],
    sizes: Sequence[int],
    *,
    repeats: int,
    device: Literal["gpus", "ranks"],
    scaling: Scaling = "as_given",
) -> SweepFile:
    """A sweep of a user's own program, with the number of ranks for ``{ranks}`` in its command."""
    if len(sizes) > 1 and not any(RANKS in word for word in command):
        raise UsageError(
            f"the command has no placeholder for the number of ranks: insert {RANKS}, as in "
            f"torchrun --nproc-per-node {RANKS} train.py"
        )
    per_size = {
        size: ("capture", "--", *(word.replace(RANKS, str(size)) for word in command))
        for size in sizes
    }
    return _sweep(per_size, repeats, workload="", scaling=scaling, device=device)


def _batch(
    workload: str, size: int, sizes: Sequence[int], batch: int, scaling: Scaling
) -> tuple[str, ...]:
    """Arguments that divide the work: a batch is per rank if weak, of all ranks if strong."""
    is_own = workload in _BATCH_PER_RANK
    if scaling == "as_given" or (scaling == "weak") == is_own:
        return ()
    if scaling == "weak":  # ranks share the sequences, so the batch must grow
        return ("--batch", str(batch * size // sizes[0]))
    if batch % size:
        least = math.lcm(*sizes) * -(-batch // math.lcm(*sizes))
        raise UsageError(
            f"strong scaling cannot divide {batch} sequences among {size} ranks evenly: "
            f"use --batch {least}"
        )
    return ("--batch", str(batch // size))


def _sweep(
    per_size: dict[int, tuple[str, ...]],
    repeats: int,
    *,
    workload: str,
    scaling: Scaling,
    device: Literal["gpus", "ranks"],
) -> SweepFile:
    if repeats * len(per_size) > MAX_RUNS:
        raise UsageError(f"{repeats * len(per_size):,} runs: a sweep has at most {MAX_RUNS:,}")
    return SweepFile(
        distprof_version=__version__,
        workload=workload,
        scaling=scaling,
        device=device,
        runs=tuple(_alternating(per_size, repeats)),
        started_ns=time.time_ns(),
        num_cpus=available_processors(),
    )


def _alternating(per_size: dict[int, tuple[str, ...]], repeats: int) -> Iterator[SweepRun]:
    """Descending, then ascending sizes, so drift affects all alike and the largest fails first."""
    for repeat in range(repeats):
        sizes = sorted(per_size, reverse=repeat % 2 == 0)
        for size in sizes:
            folder = f"ranks{size:05d}-repeat{repeat:02d}"
            yield SweepRun(ranks=size, repeat=repeat, folder=folder, arguments=per_size[size])


def _has(arguments: Sequence[str], flag: str) -> bool:
    """Whether the user has set an option, or its negation."""
    names = (flag, flag.replace("--", "--no-", 1))
    return any(word.partition("=")[0] in names for word in arguments)
