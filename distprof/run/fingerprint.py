"""Whether two runs are comparable, and the differences between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from distprof.artefacts.summary_file import Fingerprint

_OF_SIZE = ("world size", "nodes", "mesh", "config training.batch")
_WEIGHTY = tuple(f"version of {name}" for name in ("driver", "cuda", "nccl", "torch"))
_SELF = "distprof"  # its version does not affect training
_PROBES = "probes."
_VARYING = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "TORCHELASTIC_RESTART_COUNT",
    "NCCL_DEBUG",
)
"""Variables that differ from run to run, or that affect only the output of a run."""


_MAX_TEXT = 2_000
"""Characters kept and compared of each option."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One property that differs between two runs."""

    field: str  # Name of the property, for example ``device`` or ``config training.steps``.
    # ``hardware`` (devices, world size, nodes, backend), ``job`` (workload and its layout) or
    # ``software`` (versions, variables).
    group: str
    first: str  # Value in the first run; empty if unknown or not set.
    second: str  # Value in the second run; empty if unknown or not set.

    @property
    def sentence(self) -> str:
        """The difference as a sentence, without full stop."""
        first, second = self.first or "not set", self.second or "not set"
        return f"{self.field} is {first} in one and {second} in the other"


def differences(first: Fingerprint, second: Fingerprint) -> tuple[Difference, ...]:
    """All properties known for both runs that differ, hardware first.

    A property that one of the runs does not record does not count as a difference. An option or
    variable that only one of them sets does.
    """
    return tuple(_differences(first, second))


def _differences(first: Fingerprint, second: Fingerprint) -> Iterator[Difference]:
    for name, field, group in _SINGLE:
        mine, theirs = getattr(first, field), getattr(second, field)
        if mine not in (None, "") and theirs not in (None, "") and mine != theirs:
            yield Difference(field=name, group=group, first=str(mine), second=str(theirs))
    if first.mesh and second.mesh:
        yield from _entries("mesh", "job", first.mesh, second.mesh)
    configs = [_without(each.config, _PROBES) for each in (first, second)]
    if all(configs):
        yield from _entries("config", "job", *configs)
    known = (first.versions.keys() & second.versions.keys()) - {_SELF}
    versions = [{name: each.versions[name] for name in known} for each in (first, second)]
    yield from _entries("version of", "software", *versions)
    if first.versions and second.versions:  # both are run directories: a missing variable is unset
        set_here, set_there = (_without(each.environment, _VARYING) for each in (first, second))
        yield from _entries("variable", "software", set_here, set_there)


def _without(values: Mapping[str, str], starts: str | tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in values.items() if not name.startswith(starts)}


_SINGLE = (
    ("device", "device", "hardware"),
    ("world size", "world_size", "hardware"),
    ("nodes", "num_nodes", "hardware"),
    ("backend", "backend", "hardware"),
    ("workload", "workload", "job"),
    ("strategy", "strategy", "job"),
)
"""Properties of one value: their names, fields and groups."""


def compared(first: Fingerprint, second: Fingerprint) -> tuple[str, ...]:
    """Names of the properties that both runs record."""
    return tuple(
        name
        for name, field in _COMPARED.items()
        if getattr(first, field) not in (None, "", {}) and getattr(second, field)
    )


_COMPARED = {
    "device": "device",
    "world size": "world_size",
    "nodes": "num_nodes",
    "backend": "backend",
    "program": "workload",
    "mesh": "mesh",
    "configuration": "config",
    "versions": "versions",
    "variables": "environment",
}
"""Names of properties for users, and their fields."""


def flat_config(config: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Flatten sections and options to a mapping to text, as in :attr:`Fingerprint.config`."""
    return {
        f"{section}.{option}": str(value)[:_MAX_TEXT]
        for section, options in config.items()
        for option, value in options.items()
    }


def unlike(
    first: Fingerprint,
    second: Fingerprint,
    *,
    sizes_may_differ: bool = False,
    is_gate: bool = False,
) -> tuple[Difference, ...]:
    """The differences that make the step times of two runs incomparable.

    Hardware and job must be the same. Software may differ, as comparisons of two runs are often
    about software. A gate on a team's own code is stricter: it must not attribute a driver update
    to a change of the code.

    Args:
        first: The first run.
        second: The second run.
        sizes_may_differ: Whether the number of ranks and nodes, the mesh, and the batch per rank
            may differ, as they do in a scaling sweep.
        is_gate: Whether versions of driver, CUDA, NCCL and torch, and variables, must be the same.
    """
    free = _OF_SIZE if sizes_may_differ else ()
    return tuple(
        difference
        for difference in differences(first, second)
        if not difference.field.startswith(free)
        and (
            difference.group != "software"
            or (is_gate and difference.field in _WEIGHTY)
            or (is_gate and difference.field.startswith("variable "))
        )
    )


def _entries(
    field: str, group: str, first: Mapping[str, object], second: Mapping[str, object]
) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        mine, theirs = str(first.get(name, "")), str(second.get(name, ""))
        if mine != theirs:
            yield Difference(field=f"{field} {name}", group=group, first=mine, second=theirs)
