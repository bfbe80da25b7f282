"""Whether two runs are comparable, and the differences between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from distprof.artefacts.summary_file import Fingerprint

_HARDWARE = "hardware"
_JOB = "job"
_SOFTWARE = "software"

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
    return (*_of_hardware(first, second), *_of_job(first, second), *_of_software(first, second))


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
        if not difference.field.startswith(free) and _forbids(difference, is_gate=is_gate)
    )


def _forbids(difference: Difference, *, is_gate: bool) -> bool:
    if difference.group != _SOFTWARE:
        return True
    return is_gate and (difference.field in _WEIGHTY or difference.field.startswith("variable "))


def _of_hardware(first: Fingerprint, second: Fingerprint) -> Iterator[Difference]:
    yield from _one("device", _HARDWARE, first.device, second.device)
    yield from _one("world size", _HARDWARE, first.world_size, second.world_size)
    yield from _one("nodes", _HARDWARE, first.num_nodes, second.num_nodes)
    yield from _one("backend", _HARDWARE, first.backend, second.backend)


def _of_job(first: Fingerprint, second: Fingerprint) -> Iterator[Difference]:
    yield from _one("workload", _JOB, first.workload, second.workload)
    yield from _one("strategy", _JOB, first.strategy, second.strategy)
    yield from _many("mesh", _JOB, first.mesh, second.mesh)
    yield from _many("config", _JOB, _training(first.config), _training(second.config))


def _of_software(first: Fingerprint, second: Fingerprint) -> Iterator[Difference]:
    known = (first.versions.keys() & second.versions.keys()) - {_SELF}
    mine, theirs = ({name: of[name] for name in known} for of in (first.versions, second.versions))
    yield from _entries("version of", _SOFTWARE, mine, theirs)
    if first.versions and second.versions:  # both are run directories: a missing variable is unset
        set_here, set_there = _steady(first.environment), _steady(second.environment)
        yield from _entries("variable", _SOFTWARE, set_here, set_there)


def _one(field: str, group: str, first: object, second: object) -> Iterator[Difference]:
    known = first not in (None, "") and second not in (None, "")
    if known and first != second:
        yield Difference(field=field, group=group, first=str(first), second=str(second))


def _many(
    field: str, group: str, first: Mapping[str, object], second: Mapping[str, object]
) -> Iterator[Difference]:
    """Differences entry by entry; none if either mapping is empty."""
    if first and second:
        yield from _entries(field, group, first, second)


def _entries(
    field: str, group: str, first: Mapping[str, object], second: Mapping[str, object]
) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        mine, theirs = first.get(name, ""), second.get(name, "")
        if mine != theirs:
            text = f"{field} {name}"
            yield Difference(field=text, group=group, first=str(mine), second=str(theirs))


def _training(config: Mapping[str, str]) -> dict[str, str]:
    """The options without those of the probes."""
    return {name: value for name, value in config.items() if not name.startswith(_PROBES)}


def _steady(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_VARYING)}
