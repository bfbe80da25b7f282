"""# uneven-nccl-settings

## What it detects
Ranks of one job use different versions of NCCL, or different values of one of its variables.

## Why it costs time
NCCL plans for a communicator as a whole. Different settings on its ranks lead to slow algorithms on
all ranks, to a hang, or to wrong results. Often one node has a different image or profile file.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`, subsystems INIT and ENV) of several ranks. NCCL logs a variable when
it first reads it, and old versions log their version only on rank 0. A variable that is set on some
ranks and unset on others shows only if a whole node lacks it.

## How the cost is computed
No cost: different settings may cost nothing or the whole job.

## How to fix
Set the environment in one place for all ranks (the launcher, `/etc/nccl.conf` in the image), and
use one image.

## When it is wrong
Names of cards and interfaces (`NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA`) and file paths may differ
between nodes. The rule does not compare them.

## Sources
NCCL's user guide, "Environment variables": all ranks need the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.nccl.result import NcclResult, NcclSetting
from distprof.sections.nccl.rules._shared import has_log
from distprof.terms import Confidence, Severity

_OF_A_NODE = ("_IFNAME", "_HCA", "_FILE", "_HOSTID", "_DIR", "_PATH", "_CONF", "_CUDA_DEVICE")
_MOST_NAMED = 3
_MOST_HOSTS = 3


@rule(code="NET105", severity=Severity.WARNING, since="0.1.0", costs_time=False)
def check(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - one signature
    """Yield one finding for all settings."""
    if not has_log(nccl):
        return
    differences = [*_versions(nccl), *_values(nccl), *_missing(nccl)]
    if not differences:
        return
    more = (
        f"; {len(differences) - _MOST_NAMED} more differ" if len(differences) > _MOST_NAMED else ""
    )
    yield Draft(
        message=f"{'; '.join(differences[:_MOST_NAMED])}{more}.",
        fix="Set the environment in one place for all ranks, and use one image.",
        confidence=Confidence.INFERRED,
        evidence=("nccl.settings", "nccl.versions"),
    )


def _versions(nccl: NcclResult) -> Iterator[str]:
    """Differing versions; a version truncated by other ranks' output does not count."""
    texts = [version.value for version in nccl.versions]
    whole = [
        version
        for version in nccl.versions
        if not any(text != version.value and text.startswith(version.value) for text in texts)
    ]
    if _differs(whole):
        yield f"The version of NCCL is {_sides(whole)}"


def _values(nccl: NcclResult) -> Iterator[str]:
    for name, settings in _by_name(nccl).items():
        if _differs(settings):
            yield f"{name} is {_sides(settings)}"


def _differs(settings: Sequence[NcclSetting]) -> bool:
    """Whether processes print different values.

    A process may print a variable twice, for two communicators or from two files. Processes that
    all print the same values do not differ.
    """
    return len(settings) > 1 and any(
        setting.num_printing is None or setting.num_processes < setting.num_printing
        for setting in settings
    )


def _missing(nccl: NcclResult) -> Iterator[str]:
    """Variables set by all processes of some hosts and by none of another."""
    hosts = {host.host: host.num_processes for host in nccl.hosts}
    printing = {host for setting in nccl.settings for host in setting.hosts}
    for name, settings in _by_name(nccl).items():
        present = {host for setting in settings for host in setting.hosts}
        number = sum(setting.num_processes for setting in settings)
        absent = printing - present
        if len(settings) == 1 and absent and number == sum(hosts.get(host, 0) for host in present):
            yield f"{name} is set on {_hosts(sorted(present))} and not on {_hosts(sorted(absent))}"


def _by_name(nccl: NcclResult) -> dict[str, list[NcclSetting]]:
    found: dict[str, list[NcclSetting]] = {}
    for setting in nccl.settings:
        if not setting.name.endswith(_OF_A_NODE):
            found.setdefault(setting.name, []).append(setting)
    return found


def _sides(settings: Sequence[NcclSetting]) -> str:
    ordered = sorted(settings, key=lambda setting: (-setting.num_processes, setting.value))
    return " and ".join(_side(setting) for setting in ordered[:_MOST_NAMED])


def _side(setting: NcclSetting) -> str:
    if not setting.num_processes:
        return setting.value
    processes = "process" if setting.num_processes == 1 else "processes"
    return f"{setting.value} on {setting.num_processes} {processes} ({_hosts(setting.hosts)})"


def _hosts(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return ", ".join(hosts[:_MOST_HOSTS]) + more
