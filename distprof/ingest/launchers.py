"""Which node ranks run on, by the variables that launchers set.

Asked only where nothing better tells: neither the ranks of a run directory nor host names in
traces. Launchers number ranks node by node unless told otherwise; where a variable says so, or the
numbers do not fit, nothing is concluded.

Source:
    SLURM's ``srun`` (output environment variables, distribution, hostlist expressions), torchrun,
    Kubeflow's training operator (``PET_…``), Open MPI's ``mpirun``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

__all__ = ["nodes_of_launcher", "parse_hostlist", "parse_task_counts"]

MAX_HOSTS = 1 << 16
_PART = re.compile(r"[^\[\],]+|\[[0-9,\-]+\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")

Nodes = Mapping[str, tuple[int, ...]]


def nodes_of_launcher(environment: Mapping[str, str], world_size: int | None) -> Nodes:
    """Node name to its ranks; empty where the variables do not tell.

    Args:
        environment: Variables of any rank of the job, or of its launcher.
        world_size: Ranks of the job.
    """
    if world_size is None or world_size < 1:
        return {}
    return _of_slurm(environment, world_size) or _of_equal_nodes(environment, world_size)


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Hosts of an expression such as ``n[001-003,7],x``, in order; empty where it is none."""
    hosts: list[str] = []
    for part in _split_outside_brackets(text.strip()):
        pieces = _PART.findall(part)
        if not part or "".join(pieces) != part:
            return ()
        choices = [_numbers(piece) if piece[0] == "[" else (piece,) for piece in pieces]
        size = 1
        for choice in choices:
            size *= len(choice)
        if size == 0 or len(hosts) + size > MAX_HOSTS:
            return ()
        hosts += ["".join(combination) for combination in product(*choices)]
    return tuple(hosts)


def parse_task_counts(text: str) -> tuple[int, ...]:
    """Tasks of each node from ``8(x4),2``; empty where the text is something else."""
    counts: list[int] = []
    for part in text.strip().split(","):
        found = _COUNT.fullmatch(part)
        times = int(found[2] or 1) if found else 0
        if found is None or len(counts) + times > MAX_HOSTS:
            return ()
        counts += [int(found[1])] * times
    return tuple(counts)


def _of_slurm(env: Mapping[str, str], world_size: int) -> Nodes:
    """One rank per task; with one task per node, an agent such as torchrun's starts the ranks."""
    hosts = parse_hostlist(_first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    counts = parse_task_counts(_first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if not hosts or len(hosts) != len(counts) or len(set(hosts)) != len(hosts):
        return {}
    if sum(counts) != world_size:
        return {}
    distribution = env.get("SLURM_DISTRIBUTION", "block").lower().split(":")[0].split(",")[0]
    if distribution in ("block", "pack", "nopack", "unknown", ""):
        return dict(zip(hosts, _blocks(counts), strict=True))
    if distribution == "cyclic":
        return dict(zip(hosts, _in_turn(counts), strict=True))
    return {}


def _of_equal_nodes(env: Mapping[str, str], world_size: int) -> Nodes:
    """Blocks of as many ranks as there are on this node: agents and mpirun number them so."""
    if env.get("OMPI_MCA_rmaps_base_mapping_policy", "") not in ("", "slot", "core"):
        return {}
    text = _first(
        env, "LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ).strip()
    local = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    if local < 1 or world_size % local:
        return {}
    nodes = world_size // local
    said = env.get("PET_NNODES", "").strip()
    if said.isdecimal() and said != str(nodes):
        return {}
    return {f"node{n}": ranks for n, ranks in enumerate(_blocks([local] * nodes))}


def _blocks(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks numbered node by node."""
    found, start = [], 0
    for count in counts:
        found.append(tuple(range(start, start + count)))
        start += count
    return found


def _in_turn(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks dealt out to the nodes one by one, to those that still have room."""
    found: list[list[int]] = [[] for _ in counts]
    rank = 0
    for turn in range(max(counts, default=0)):
        for node, count in enumerate(counts):
            if turn < count:
                found[node].append(rank)
                rank += 1
    return [tuple(ranks) for ranks in found]


def _split_outside_brackets(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket."""
    depth = start = 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _numbers(bracket: str) -> tuple[str, ...]:
    """``[001-003,7]`` as ``001``, ``002``, ``003``, ``7``; empty where it is no list of ranges."""
    found: list[str] = []
    for part in bracket[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or len(found) + high - low >= MAX_HOSTS:
            return ()
        found += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return tuple(found)


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")
