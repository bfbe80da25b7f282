"""Rules about NCCL's settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from distprof.artefacts.record import grouped
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.nccl import INSIDE, SAYS, NcclResult, NcclSetting
from distprof.sections.nccl.rules import connections, has_log, only_on, said, setting_of
from distprof.sections.sharding import ShardingResult
from distprof.sections.table import counted
from distprof.terms import Confidence, NcclRemark, Severity
from distprof.units import few_names, verb


@rule("COM122", Severity.INFO, costs_time=False)
def forced_nccl_settings(
    nccl: NcclResult,
    sharding: ShardingResult,
) -> Iterator[Draft]:
    """Environment variables restrict NCCL's choices: the algorithm or protocol is forced, a
    transport is disabled (NCCL_P2P_DISABLE), or the number of channels is limited.
    """
    # Values common to all processes: from NCCL's log, otherwise from the environment
    found: dict[str, set[str]] = defaultdict(set)
    for setting in nccl.settings:
        found[setting.name].add(setting.value)
    if sharding.device != "cpu":
        for variable in sharding.environment:
            if variable.name not in found:
                found[variable.name].add(variable.value)
    values = {name: values.pop() for name, values in found.items() if len(values) == 1}
    named = {
        name: (value, *known[name][1:])
        for known in (SAYS["inside"], SAYS["choices"])
        for name, value in values.items()
        if name in known
        and value
        and not (nccl.is_on_one_host and name in SAYS["between"])
        and not (name == "NCCL_PROTO" and said(nccl, NcclRemark.GDR_OFF))  # set by the plug-in
        and re.fullmatch("|".join(known[name][0]) or ".*", value.strip().upper())
    }
    if any(t.where == INSIDE and t.transport.startswith("SHM") for t in nccl.transports):
        named = {name: one for name, one in named.items() if not name.startswith("NCCL_P2P")}
    if not named:
        return
    shown = {f"{name}={value}": what for name, (value, what) in named.items()}
    slow = {one: SAYS["slowest"][one] for one in shown if one in SAYS["slowest"]}
    parts = [f"{one} ({what})" for one, what in (slow | shown | slow).items()]
    is_only_known = nccl.num_files > 0 and not nccl.num_texts  # nothing shows what NCCL uses
    is_heavy = is_only_known or bool(slow or named.keys() & {*SAYS["inside"], "NCCL_IB_HCA"})
    settings, names = counted(len(parts), "setting"), few_names([*named], 2)
    yield Draft(
        headline=f"{settings} of the environment {verb(parts, 'restrict')} NCCL: {names}",
        message=f"{' and '.join(parts)}.",
        fix=advice("forced-nccl-settings"),
        confidence=Confidence.MEASURED,
        severity=Severity.WARNING if is_heavy else None,
        evidence=("nccl.settings", "sharding.environment"),
    )


@rule(
    "NET103",
    Severity.WARNING,
    costs_time=False,
    shared_ratio=Limit(0.01, "smallest share of connections inside nodes over shared memory"),
)
def shared_memory_inside_node(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:
    """GPUs of one node communicate through CPU memory although the log shows a faster path."""
    refused = said(nccl, NcclRemark.PEER_OFF)
    if has_log(nccl) and not nccl.transports and refused:
        # From what NCCL says of GPUs, where the log names no connection
        by = "NVLink" if any(remark.value == "NVLink" for remark in refused) else "PCIe"
        most = max(remark.num_processes for remark in refused)
        refusal = "linked" if by == "NVLink" else "refused"
        value = setting_of(nccl, "NCCL_P2P_DISABLE")
        because = f"; NCCL_P2P_DISABLE is set to {value}" if value else ""
        yield Draft(
            headline=f"GPUs have no access to each other on {counted(most, 'process')}",
            message=(
                f"NCCL says that access by {by} is disabled, so that every byte between GPUs goes "
                f"through CPU memory{because}."
            ),
            fix=advice("shared-memory-inside-node", "set" if value else refusal),
            confidence=Confidence.INFERRED,
            evidence=("nccl.remarks", "nccl.settings"),
        )
        return
    shared, total = connections(nccl, INSIDE, lambda way: way.transport == "SHM")
    if not shared or shared < limits["shared_ratio"] * total:
        return
    where, why = only_on(nccl, INSIDE, lambda way: way.transport == "SHM"), _why(nccl)
    case = "limited" if "LEVEL is" in why else "set" if " is set " in why else "refused"
    yield Draft(
        headline=f"{shared:,} of {total:,} connections inside nodes go through CPU memory",
        message=(f"NCCL uses shared memory (SHM){f' only{where}' if where else ''}; {why}."),
        fix=advice("shared-memory-inside-node", case),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports", "nccl.settings"),
    )


def _why(nccl: NcclResult) -> str:
    for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        value = setting_of(nccl, name)
        if value and (name, value) != ("NCCL_P2P_DISABLE", "0"):
            return f"{name} is set to {value}"
    if {"NVL", "NVB", "C2C", "XGMI"} & set(nccl.paths):
        return "NCCL's graph search found NVLink between GPUs"
    if said(nccl, NcclRemark.PEER_OFF):
        return "it could not enable access between GPUs"
    raise InsufficientEvidenceError(
        "connections go through CPU memory, but the log does not show a faster path: log with "
        "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH"
    )


_OF_A_NODE = ("_IFNAME", "_HCA", "_FILE", "_HOSTID", "_DIR", "_PATH", "_CONF", "_CUDA_DEVICE")
_MOST_NAMED = 3
_MOST_HOSTS = 3


@rule("NET105", Severity.WARNING, costs_time=False)
def uneven_nccl_settings(nccl: NcclResult) -> Iterator[Draft]:
    """Ranks of one job use different versions of NCCL, or other values of one of its settings."""
    if not has_log(nccl):
        return
    by_name = _by_name(nccl).items()
    values = [f"{name} is {_sides(each)}" for name, each in by_name if _differs(each)]
    differences = [*_versions(nccl), *values, *_missing(nccl)]
    if not differences:
        return
    left = len(differences) - _MOST_NAMED
    more = f"; {left} more differ" * (left > 0)
    yield Draft(
        headline=f"Ranks do not agree on {counted(len(differences), 'setting')} of NCCL",
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
            some, others = (few_names(sorted(of), _MOST_HOSTS) for of in (present, absent))
            yield f"{name} is set on {some} and not on {others}"


def _by_name(nccl: NcclResult) -> dict[str, list[NcclSetting]]:
    return grouped((one.name, one) for one in nccl.settings if not one.name.endswith(_OF_A_NODE))


def _sides(settings: Sequence[NcclSetting]) -> str:
    ordered = sorted(settings, key=lambda setting: (-setting.num_processes, setting.value))
    return " and ".join(_side(setting) for setting in ordered[:_MOST_NAMED])


def _side(setting: NcclSetting) -> str:
    if not setting.num_processes:
        return setting.value
    processes = counted(setting.num_processes, "process")
    return f"{setting.value} on {processes} ({few_names(setting.hosts, _MOST_HOSTS)})"
