"""Groups summaries of runs by size: usable runs, their work, and weak or strong scaling."""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from distprof.artefacts.summary_file import SummaryFile, SweepFile, SweepRun
from distprof.documents.document import Document, write_file
from distprof.errors import UsageError
from distprof.kernel import available_processors
from distprof.options import whole_number
from distprof.verbs.sweep import Mode, says
from distprof.version import __version__

_TOLERANCE = 0.02
"""Amounts of work per step that differ by less count as equal: batches are rounded to ranks."""
_MOST_RANKS = 10**8
_LONGEST_NS = 10**17  # three years
_LEAST_WORK, _MOST_WORK = 1e-9, 1e18  # a larger value is damaged
_FIELDS = {"tokens": "tokens_per_step", "samples": "samples_per_step"}


SUMMARY = Document(
    kind=SummaryFile,
    noun="a summary",
    fix="make it again with: distprof scale --save-summaries FILE",
    indent=1,
)
"""Summary of one run; a file may hold a list of them."""


class SweepError(ValueError):
    """The runs do not form a sweep; the message says why."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of several sizes."""

    # Repeats in order of time, by ascending number of ranks.
    runs: dict[int, tuple[SummaryFile, ...]]
    # Work per step of all ranks in ``unit``, by number of ranks; follows from the mode if the runs
    # do not record it.
    work: dict[int, float]
    unit: str  # ``tokens``, ``samples`` or ``steps``.
    has_work: bool  # Whether the runs record their work.
    mode: Mode  # Weak or strong.
    how: str  # How the mode was determined, one sentence.
    left_out: tuple[str, ...]  # One sentence for each unusable run.


def gather(summaries: Iterable[SummaryFile], mode: Mode | None) -> Sweep:
    """Group runs by size; without a mode, infer it from the work per step."""
    runs, left_out = _by_size(summaries)
    if len(runs) < 2:
        found = "no run with steps and a size"
        if runs:
            ranks = next(iter(runs))
            found = f"only {'1 rank' if ranks == 1 else f'{ranks} ranks'}"
        why = f"Scaling needs runs of at least two sizes. Found: {found}."
        raise SweepError(" ".join((why, *left_out)))
    unit = _unit(runs)
    if not unit:
        if mode is None:
            raise SweepError(says("no work"))
        work = {ranks: float(ranks) if mode == "weak" else 1.0 for ranks in runs}
        found_mode, how = mode, _chosen(mode)
    else:
        work = _work(runs, unit)
        found_mode, how = _mode(work, unit, mode)
    return Sweep(
        runs=runs,
        work=work,
        unit=unit or "steps",
        has_work=bool(unit),
        mode=found_mode,
        how=how,
        left_out=tuple(left_out),
    )


def _by_size(
    summaries: Iterable[SummaryFile],
) -> tuple[dict[int, tuple[SummaryFile, ...]], list[str]]:
    found: dict[int, list[SummaryFile]] = {}
    left_out: list[str] = []
    for number, run in enumerate(summaries, 1):
        ranks = run.fingerprint.world_size
        why = ""
        if ranks is None or not 1 <= ranks <= _MOST_RANKS:
            why = "does not record its number of ranks"
        elif not run.step_ns:
            why = "has no steady step"
        elif min(run.step_ns) <= 0:
            why = f"has a step that took {min(run.step_ns)} ns"
        elif max(run.step_ns) > _LONGEST_NS:
            why = "has a step that took more than three years"
        else:
            found.setdefault(ranks, []).append(run)
        if why:
            left_out.append(f"{run.label or run.source or f'run {number}'} {why}.")
    in_time = {n: sorted(runs, key=lambda run: run.created_ns) for n, runs in found.items()}
    return {ranks: tuple(in_time[ranks]) for ranks in sorted(in_time)}, left_out


def _unit(runs: dict[int, tuple[SummaryFile, ...]]) -> str:
    """Unit of work that every run records; empty if there is none."""
    for unit, field in _FIELDS.items():
        values = [getattr(run, field) for repeats in runs.values() for run in repeats]
        if all(value is not None and _LEAST_WORK <= value <= _MOST_WORK for value in values):
            return unit
    return ""


def _work(runs: dict[int, tuple[SummaryFile, ...]], unit: str) -> dict[int, float]:
    work = {}
    for ranks, repeats in runs.items():
        values = [float(getattr(run, _FIELDS[unit])) for run in repeats]
        work[ranks] = statistics.median(values)
        if max(values) > (1 + _TOLERANCE) * min(values):
            ends = {"least": min(values), "most": max(values)}
            raise SweepError(says("work differs", ranks=ranks, unit=unit, **ends))
    return work


def _chosen(mode: Mode) -> str:
    return f"{mode.capitalize()} scaling, as requested."


def _mode(work: dict[int, float], unit: str, requested: Mode | None) -> tuple[Mode, str]:
    is_strong = _is_constant(list(work.values()))
    is_weak = _is_constant([value / ranks for ranks, value in work.items()])
    found: Mode | None = "strong" if is_strong else "weak" if is_weak else None
    if requested is not None:
        how = _chosen(requested)
        if found != requested:
            how += f" However, {unit} per step are {_listed(work)} ranks."
        return requested, how
    if found is None:
        raise SweepError(says("uneven work", unit=unit, work=_listed(work)))
    who = "all ranks together process" if found == "strong" else "each rank processes"
    constant = f"{who} the same number of {unit} per step at every size"
    return found, f"{found.capitalize()} scaling: {constant}."


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) <= (1 + _TOLERANCE) * min(values)


def _listed(work: dict[int, float]) -> str:
    return ", ".join(f"{value:g} on {ranks}" for ranks, value in work.items())


def save_summaries(summaries: Sequence[SummaryFile], file: str) -> None:
    """Write the summaries of runs to one file."""
    data = msgspec.json.encode(summaries)
    write_file(Path(file), msgspec.json.format(data, indent=SUMMARY.indent))


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
    """A sweep of a reference workload."""
    given = {word.partition("=")[0] for word in arguments}
    quick = [
        word
        for flag, words in _QUICK
        if given.isdisjoint((flag, flag.replace("--", "--no-", 1)))
        for word in words
    ]
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
        raise UsageError(says("no placeholder", ranks=RANKS))
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
        raise UsageError(says("uneven batch", batch=batch, size=size, least=least))
    return ("--batch", str(batch // size))


def _sweep(per_size: dict[int, tuple[str, ...]], repeats: int, **fields: Any) -> SweepFile:
    if repeats * len(per_size) > MAX_RUNS:
        raise UsageError(f"{repeats * len(per_size):,} runs: a sweep has at most {MAX_RUNS:,}")
    return SweepFile(
        distprof_version=__version__,
        **fields,
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
