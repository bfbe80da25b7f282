"""Rules about how GPUs and their links are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from distprof.escape import few_ranks, fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle import IdleResult
from distprof.sections.kernels import KernelsResult
from distprof.sections.shares import MeanStep, StepTimes
from distprof.sections.table import counted
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceNvlink,
    RankTelemetry,
    TelemetryResult,
)
from distprof.sections.telemetry.rules.devices import NO_SENSORS, name_devices, ranks_of
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_bandwidth, format_ratio, name_ranks


@rule(
    "TEL106",
    Severity.INFO,
    costs_time=False,
    waiting_ratio=Limit(0.15, "share of the energy that waiting may take"),
)
def energy_spent_waiting(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """A large share of the job's energy is drawn while ranks wait for other ranks.

    ## Why it costs time
    Waiting is lost time, and other findings name the rank that causes it. This finding reports its
    energy: NCCL's kernels poll while they wait, so a waiting GPU draws most of its power.

    ## Evidence needed
    Power, or the energy counter, of every rank's GPU over the analysed steps, and collectives
    matched across ranks, so that waiting and transfer can be separated.

    ## How the cost is computed
    Only in energy: the sum over ranks of mean power times exposed waiting. Findings on stragglers,
    pipelines and collectives carry the cost in time.

    ## How to fix
    Fix the causes of waiting, most expensive first. Until then a lower power cap on waiting ranks
    saves energy and costs no time.

    ## When it is wrong
    Samples are too far apart to show the power of a GPU while it waits, so distprof uses its mean
    power. A waiting GPU draws somewhat less than a computing one.

    ## Sources
    Formula sheet, "Measured from traces" (exposed wait).
    """
    share = telemetry.waiting_energy_ratio
    if share is None:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks:
            raise InsufficientEvidenceError(
                "; ".join(telemetry.unavailable) or "no step with a known energy was analysed"
            )
        return
    if share < limits["waiting_ratio"]:
        return
    yield Draft(
        headline=f"{format_ratio(share)} of the energy is drawn while ranks wait for others",
        message=_amount(telemetry.energy_per_step_j, share),
        confidence=Confidence.MODELLED,
        evidence=("telemetry.waiting_energy_ratio",),
    )


def _amount(total_j: float | None, share: float) -> str:
    if total_j is None:
        return "It is the energy of the traced ranks."
    return f"{_joules(share * total_j)} of {_joules(total_j)} per step."


def _joules(energy: float) -> str:
    for unit, size in (("MJ", 1e6), ("kJ", 1e3)):
        if energy >= size:
            return f"{energy / size:.3g} {unit}"
    return f"{energy:.3g} J"


_WIDER = ("HST109", "STR110", "COM103")


@rule(
    "TEL107",
    Severity.WARNING,
    dominates_ratio=Limit(0.05, "share of the step from which this finding comes first"),
    stretched_ratio=Limit(
        0.1, "share of the step from which kernels that run longer than usual count"
    ),
)
def shared_gpu(
    telemetry: TelemetryResult,
    idle: IdleResult,
    kernels: KernelsResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Ranks that share one GPU, and GPUs on which another process also computes.

    ## Why it costs time
    Without MPS, processes take turns on a GPU: while the kernels of one run, those of the other
    wait, although they were launched in time. The trace of each rank shows idle time without a
    cause, and its collectives wait for ranks whose turn has not come. A process left behind by an
    earlier job, or by another user of the machine, slows a single rank in this way, and all other
    ranks wait for it.

    ## Evidence needed
    The UUID of each rank's GPU, or the number of processes that compute on it, from distprof's
    probe. A container may show only its own processes.

    ## How the cost is computed
    Idle time of these ranks although kernels were launched in time, mean per step, less the median
    of ranks that have a GPU to themselves. Kernels that are interrupted take longer: their time
    beyond the usual duration of the same kernels in the fastest step is added, if it is at least a
    tenth of the step.

    ## How to fix
    Give each rank its own GPU: set the device from LOCAL_RANK, and start as many ranks as there are
    GPUs (`CUDA_VISIBLE_DEVICES`, `--gpus-per-task`). Stop leftover processes (`nvidia-smi`, `fuser
    -v /dev/nvidia*`).

    ## When it is wrong
    Ranks share a GPU on purpose in tests. Under MPS their kernels run concurrently, which costs
    less. Processes that the job starts for other work, such as writing checkpoints, count as other
    processes.

    ## Sources
    NVIDIA, "Multi-Process Service" (time-slicing of contexts). NVML API reference,
    nvmlDeviceGetComputeRunningProcesses.
    """
    if telemetry.is_missing:
        raise InsufficientEvidenceError(NO_SENSORS)
    step = times.mean_step()
    by_gpu: dict[str, list[RankTelemetry]] = {}
    for one in telemetry.ranks:
        by_gpu.setdefault(one.uuid or f"of rank {one.rank}", []).append(one)
    shared = [sharers for sharers in by_gpu.values() if len(sharers) > 1]
    crowded = [sharers for sharers in by_gpu.values() if _num_others(sharers) > 0]
    for groups, text in ((shared, _of_ranks), (crowded, _of_others)):
        if not groups:
            continue
        ranks = tuple(sorted(one.rank for sharers in groups for one in sharers))
        # time of kernels beyond their usual durations on these ranks, mean per rank and step
        known = [one.stretched_ns_per_step or 0 for one in kernels.ranks if one.rank in ranks]
        stretched = round(mean(known)) if known else 0
        if step.ratio(stretched) < limits["stretched_ratio"]:
            stretched = 0
        cost = _idle_ns(idle, ranks, step) + stretched
        is_costly = step.ratio(cost) >= limits["dominates_ratio"]
        who = few_ranks([one.rank for one in groups[0]])
        what = f"{who} share a GPU" if groups is shared else f"Others may use the GPU of {who}"
        effect = f"it costs {step.part(cost)}" if cost else f"{len(groups)} GPUs are shared"
        yield Draft(
            headline=f"{capitalized(what)}: {effect}",
            message=f"{capitalized(text(groups))} {_effect(cost, stretched, step)}",
            cost_ns_per_step=cost or None,
            confidence=Confidence.INFERRED,
            ranks=ranks,
            evidence=("telemetry.ranks", "idle.ranks"),
            severity=None if groups is shared or is_costly else Severity.INFO,
            explains=_WIDER,
            comes_first=is_costly,
        )


def _num_others(sharers: Sequence[RankTelemetry]) -> int:
    """Number of processes on a GPU that are not ranks of the job."""
    return max(one.num_processes or 0 for one in sharers) - len(sharers)


def _of_ranks(groups: Sequence[Sequence[RankTelemetry]]) -> str:
    sharers = groups[0]
    others = f", and {len(groups) - 1} more GPUs are shared" if len(groups) > 2 else ""
    others = ", and 1 more GPU is shared" if len(groups) == 2 else others
    gpu = (sharers[0].uuid or "it")[:12]  # the prefix and 8 digits, as in GPU-5f8a1c2d
    return f"Their kernels take turns on {gpu}{others}."


def _of_others(groups: Sequence[Sequence[RankTelemetry]]) -> str:
    worst = max(groups, key=_num_others)
    number = _num_others(worst)
    processes = "a process" if number == 1 else f"{number} processes"
    belong = "belongs" if number == 1 else "belong"
    return (
        f"On the GPU of {name_ranks(one.rank for one in worst)}, {processes} that {belong} to no "
        "rank may compute."
    )


def _effect(cost: int, stretched: int, step: MeanStep) -> str:
    if not cost:
        return "The traces do not show the cost."
    if stretched:
        return (
            f"For {step.amount(cost)} the GPU runs none of their kernels, or stretches them beyond "
            "their usual duration."
        )
    return (
        f"For {step.amount(cost)} the GPU runs none of their kernels, although these are launched."
    )


def _idle_ns(idle: IdleResult, ranks: Sequence[int], step: MeanStep) -> int:
    """Unexplained idle time above that of ranks with a GPU to themselves, mean per step."""
    if idle.is_cpu:
        return 0
    own = [rank.unknown_ns for rank in idle.ranks if rank.rank in ranks]
    others = [rank.unknown_ns for rank in idle.ranks if rank.rank not in ranks]
    if not own:
        return 0
    num_steps = max(1, step.num_samples // len(idle.ranks))
    usual = median(others) if others else 0
    return max(0, round((mean(own) - usual) / num_steps))


NO_STATUS = "no output of nvidia-smi nvlink --status was read: pass it with --with"
_MAX_NAMED = 4


@rule(
    "TEL105",
    Severity.WARNING,
    costs_time=False,
    peers_ratio=Limit(0.97, "bandwidth relative to the best GPU of the same model"),
    sheet_ratio=Limit(0.95, "bandwidth relative to the data sheet of the GPU"),
)
def inactive_nvlinks(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """GPUs with fewer or slower active NVLinks than other GPUs of the same model, or than the model
    has.

    ## Why it costs time
    Collectives inside a node run at the speed of the weakest GPU: one missing link of 18 costs all
    GPUs 6 % of the bandwidth.

    ## Evidence needed
    The output of `nvidia-smi nvlink --status` from one or more hosts.

    ## How the cost is computed
    Not computed: the output shows links, not the traffic over them. If collectives are slow,
    `below-fabric-bandwidth` and `slow-link` report the cost.

    ## How to fix
    Reset the GPUs and restart the fabric manager (`systemctl restart nvidia-fabricmanager`), look
    for XID 74 and NVSwitch errors, and have the board checked if the link stays down.

    ## When it is wrong
    Some cloud machines, and PCIe cards, have fewer links than the same chip elsewhere. All their
    GPUs then have equal links, and only SXM models are compared with their data sheet.

    ## Sources
    NVIDIA, `nvidia-smi nvlink` manual; formula sheet, "Hardware" (bandwidth by kind).
    """
    if not telemetry.nvlinks:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks or telemetry.devices:
            raise InsufficientEvidenceError(NO_STATUS)
        return
    for name in dict.fromkeys(links.name for links in telemetry.nvlinks):
        peers = [links for links in telemetry.nvlinks if links.name == name]
        best = max(links.bytes_per_s for links in peers)
        short = [links for links in peers if _is_short(links, best, limits)]
        if short:
            worst = min(short, key=lambda links: links.bytes_per_s)
            num_others = len(short) - 1
            expected = max(best, worst.expected_bytes_per_s or 0.0)
            more = f"; {num_others} more GPUs also lack links" if num_others > 1 else ""
            more = "; 1 more GPU also lacks links" if num_others == 1 else more
            has = f"{worst.num_active} of {worst.num_links} NVLinks"
            headline = fitting(f"{worst.device} has only {has}", f"A GPU has only {has}")
            who = "It" if headline.startswith(worst.device) else worst.device
            who = who if worst.rank is None else f"{who} (rank {worst.rank})"
            yield Draft(
                headline=headline,
                message=(
                    f"{who} reaches {format_bandwidth(worst.bytes_per_s)} of "
                    f"{format_bandwidth(expected)} per direction{_which(worst)}{more}."
                ),
                ranks=ranks_of(short),
                evidence=("telemetry.nvlinks",),
            )


def _is_short(links: DeviceNvlink, best: float, limits: Limits) -> bool:
    own, sheet = links.bytes_per_s, links.expected_bytes_per_s
    return own < limits["peers_ratio"] * best or (
        sheet is not None and own < limits["sheet_ratio"] * sheet
    )


def _which(links: DeviceNvlink) -> str:
    if not links.inactive:
        return ""
    some = ", ".join(map(str, links.inactive[:_MAX_NAMED]))
    rest = ", …" if len(links.inactive) > _MAX_NAMED else ""
    return f" (inactive: {some}{rest})"


NO_LINKS = "no PCIe links of working GPUs were read: pass the output of nvidia-smi -q with --with"


@rule("TEL110", Severity.WARNING, costs_time=False)
def reduced_pcie_link(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """GPUs whose PCIe link has fewer lanes, or an older generation, than the GPU and its host
    allow.

    ## Why it costs time
    Copies between CPU and GPU, and traffic to network cards and to GPUs without NVLink, run over
    this link. Half the lanes give half the bandwidth, and every other rank waits for this one.

    ## Evidence needed
    The output of `nvidia-smi -q` or `nvidia-smi -q -x`, or of `nvidia-smi --query-gpu` with
    `pcie.link.gen.current`, `pcie.link.gen.max`, `pcie.link.width.current`, `pcie.link.width.max`
    and `pstate`, taken while the GPUs work.

    ## How the cost is computed
    Not computed: the output shows the link, not the traffic over it.

    ## How to fix
    Reseat the GPU, its riser and its cables, and look for PCIe errors in the kernel log of its
    host. Then look at the slot's settings in the firmware of the host (generation, bifurcation).

    ## When it is wrong
    A slot may be wired with fewer lanes than the GPU has. GPUs slow the link down to save power
    when they are idle: distprof judges only those in performance states P0 to P2.

    ## Sources
    NVIDIA, `nvidia-smi` manual, "GPU Link Info".
    """
    judged = [one for one in telemetry.conditions if one.is_in_use and one.pcie_width is not None]
    if not judged:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks or telemetry.devices or telemetry.conditions:
            raise InsufficientEvidenceError(NO_LINKS)
        return
    by_link: dict[tuple[str, str], list[DeviceCondition]] = {}
    for one in judged:
        if _below(one.pcie_width, one.pcie_width_max) or _below(
            one.pcie_generation, one.pcie_generation_max
        ):
            # Present and possible link, for example ``PCIe 4.0 x8``, ``PCIe 5.0 x16``
            now = _name(one.pcie_generation, one.pcie_width)
            most = _name(one.pcie_generation_max, one.pcie_width_max)
            by_link.setdefault((now, most), []).append(one)
    yield from (_reduced_pcie_link_draft(link, devices) for link, devices in by_link.items())


def _below(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most


def _name(generation: int | None, width: int | None) -> str:
    parts = (
        "" if generation is None else f" {generation}.0",
        "" if width is None else f" x{width}",
    )
    return f"PCIe{''.join(parts)}"


def _reduced_pcie_link_draft(link: tuple[str, str], devices: Sequence[DeviceCondition]) -> Draft:
    run = "run" if len(devices) > 1 else "runs"
    allow = "the GPUs and their hosts allow" if len(devices) > 1 else "the GPU and its host allow"
    number = counted(len(devices), "GPU")
    return Draft(
        headline=f"{number} {run} over a slower PCIe link than the hardware allows",
        message=(
            f"{capitalized(name_devices(devices))} {run} over {link[0]}, but {allow} {link[1]}."
        ),
        ranks=ranks_of(devices),
        evidence=("telemetry.conditions",),
    )
