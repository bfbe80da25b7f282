"""Rules about bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.efficiency.result import CPU, EfficiencyResult
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.shares import StepTimes, has_all_members, hideable_ns
from distprof.terms import Severity
from distprof.units import format_bandwidth, format_duration


@rule(
    "COM104",
    Severity.WARNING,
    min_step_ratio=Limit(
        0.05, "share of the step for transfer that cannot overlap with computation"
    ),
)
def transfer_bound_collectives(
    collectives: CollectivesResult,
    overlap: OverlapResult,
    times: StepTimes,
    capture: CaptureResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Most of the exposed communication is transfer, not waiting, and the step has no computation
    left that the transfer could overlap with.

    ## Why it costs time
    Every byte that cannot move during computation prolongs the step. Once all computation is
    overlapped, only fewer bytes or a faster path help.

    ## Evidence needed
    - Collectives matched across ranks on comparable clocks, which separates transfer from waiting,
      most of them with all their members in the recording.
    - The overlap of each rank.

    ## How the cost is computed
    Exposed transfer, a mean over ranks and steps, less the part that could overlap with computation
    that now runs alone; `low-overlap` reports that part. The cost is part of what
    `exposed-communication` reports, and an upper bound: saving all of it would take an infinitely
    fast network.

    ## How to fix
    Compare the bus bandwidth in the message with what `distprof bench` (or nccl-tests) reaches on
    the same machines; with `--fabric` the report shows both. If the job is far slower, look for
    sockets where InfiniBand or NVLink should be (`NCCL_DEBUG=INFO`), for unused network cards, and
    for groups that straddle nodes. If it is not, send less: reduce gradients in bf16, accumulate
    with `no_sync`, raise the micro-batch size, shard inside the node (HSDP) instead of across
    nodes, and keep tensor and expert parallelism inside the NVLink domain.

    ## When it is wrong
    Small messages are bound by latency: their bandwidth is low on any network (`tiny-collectives`).
    If several collectives share a link, each of them looks slow although the link is not.

    ## Sources
    Formula sheet, "Collectives" and "Measured from traces". nccl-tests, doc/PERFORMANCE.md, for bus
    bandwidth.
    """
    step = times.mean_step()
    if not collectives.classes:
        return
    if collectives.has_only_messages:
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = collectives.split_classes
    if not classes or not step.is_split:
        raise InsufficientEvidenceError(
            "waiting and transfer could not be separated: no collective was matched across ranks"
        )
    if not has_all_members(capture):
        raise InsufficientEvidenceError(
            "most collectives lack a member in the recording: apparent transfer may be waiting for "
            "that member"
        )
    cost = step.exposed_transfer_ns - hideable_ns(step, overlap)
    if step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    largest = max(classes, key=lambda record: record.exposed_transfer_ns_per_step)
    yield Draft(
        message=(
            f"{step.share(cost)} is transfer, with no computation left to overlap with; "
            f"{_speed(largest)}."
        ),
        fix=(
            "Compare the bus bandwidth with what distprof bench reaches on these machines. If it "
            "is far lower, look for sockets, unused network cards and groups that straddle nodes. "
            "If not, send less (bf16 gradients, no_sync while accumulating, HSDP)."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "overlap.ranks", "waterfall.all"),
        without="exposed transfer",
    )


def _speed(record: CollectiveClass) -> str:
    label = record.label
    if record.busbw_bytes_per_s is None:
        return f"{label} takes {format_duration(record.transfer_ns_median)} each"
    expected = record.expected_busbw_bytes_per_s
    reference = f", {format_bandwidth(expected)} expected" if expected else ""
    return f"{label} moves at {format_bandwidth(record.busbw_bytes_per_s)} bus bandwidth{reference}"


@rule(
    "COM107",
    Severity.WARNING,
    busbw_ratio=Limit(0.7, "share of the expected bus bandwidth that is enough"),
    min_bytes=Limit(1_000_000, "size in bytes of the smallest collective to judge"),
    min_step_ratio=Limit(0.01, "share of the step that the excess transfer may take"),
)
def below_fabric_bandwidth(
    collectives: CollectivesResult, times: StepTimes, capture: CaptureResult, limits: Limits
) -> Iterator[Draft]:
    """Large collectives move their data at a fraction of the bus bandwidth that these machines
    reach with the same kind, size and group, according to a fabric profile.

    ## Why it costs time
    The network could move the same bytes in less time, but something in this job prevents it.

    ## Evidence needed
    - A fabric profile (`distprof bench`, or the output of nccl-tests), given with `--fabric` or in
      `distprof.toml`, that covers the kind, the group and the size. Without one the rule is silent.
    - Collectives matched across ranks on comparable clocks, most of them with all their members in
      the recording.

    ## How the cost is computed
    The exposed transfer of each slow class, times the share of it that the expected bandwidth would
    save; a mean over ranks and steps. Transfer that overlaps with computation costs nothing.

    ## How to fix
    Run `distprof bench` again on exactly the nodes of the job. If it is slow too, the machines are
    at fault: look for a link that is down, sockets instead of InfiniBand (`NCCL_DEBUG=INFO`), or a
    throttling GPU. If it is fast, look for collectives of several groups that share a link at the
    same time, for computation that takes the multiprocessors NCCL needs, for NCCL settings that
    differ from those of the benchmark (`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_NET`), and for a different
    rank order.

    ## When it is wrong
    A profile is measured on idle machines. In a job, computation runs at the same time as
    communication and slows both by 10 to 20 %; the limit leaves room for that. A profile of other
    machines says nothing.

    ## Sources
    Formula sheet, "Collectives". nccl-tests, doc/PERFORMANCE.md.
    """
    covered = [record for record in collectives.classes if record.expected_busbw_bytes_per_s]
    if not covered:  # no profile, or it covers no class: the result says which
        return
    step = times.mean_step()
    if not has_all_members(capture):
        raise InsufficientEvidenceError("most collectives lack a member in the recording")
    slow = [record for record in covered if _is_slow(record, limits)]
    cost = sum(_saved_ns(record) for record in slow)
    if not slow or step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(slow, key=_saved_ns)
    yield Draft(
        message=(
            f"{step.share(cost)} is excess transfer time: "
            f"{worst.label} moves at {format_bandwidth(worst.busbw_bytes_per_s)} bus "
            "bandwidth, but the fabric profile reaches "
            f"{format_bandwidth(worst.expected_busbw_bytes_per_s)}."
        ),
        fix=(
            "Run distprof bench on exactly the nodes of the job. If it is slow too, look for a "
            "broken link, sockets or a throttling GPU. If it is fast, look for groups that share a "
            "link at the same time, different NCCL settings and a different rank order."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "waterfall.all"),
    )


def _is_slow(record: CollectiveClass, limits: Limits) -> bool:
    return (
        record.busbw_bytes_per_s is not None
        and record.expected_busbw_bytes_per_s is not None
        and (record.bytes or 0) >= limits["min_bytes"]
        and record.busbw_bytes_per_s < limits["busbw_ratio"] * record.expected_busbw_bytes_per_s
    )


def _saved_ns(record: CollectiveClass) -> int:
    """Exposed transfer that the expected bandwidth would save, mean per step."""
    reached = (record.busbw_bytes_per_s or 0.0) / (record.expected_busbw_bytes_per_s or 1.0)
    return max(round(record.exposed_transfer_ns_per_step * (1 - reached)), 0)


_CPU_BACKEND = "gloo"


@rule("COM124", Severity.WARNING)
def cpu_backend_on_gpus(
    efficiency: EfficiencyResult,
    capture: CaptureResult,
    times: StepTimes,
    limits: Limits,  # noqa: ARG001
) -> Iterator[Draft]:
    """Ranks compute on GPUs, but their collectives run on gloo, which is made for CPUs.

    ## Why it costs time
    gloo copies every buffer to CPU memory, sends it over TCP, reduces it on the CPU, and copies the
    result back. It reaches a few GB/s where NCCL (RCCL, XCCL) reaches hundreds.

    ## Evidence needed
    GPU traces that name the backend of the default process group, in a job of several ranks.

    ## How the cost is computed
    All exposed transfer of the step. Only a small part of it remains with the right backend.

    ## How to fix
    Use `init_process_group("nccl")`, or `"cpu:gloo,cuda:nccl"` if the ranks also exchange objects
    in CPU memory. If you avoided NCCL because it failed, its log (`NCCL_DEBUG=INFO`) says why.

    ## When it is wrong
    The process group only serves control messages, and another library moves the gradients.

    ## Sources
    PyTorch documentation, "Distributed communication package" (which backend to use).
    """
    num_ranks = capture.world_size or len(capture.ranks_present)
    if efficiency.device in ("", CPU) or num_ranks < 2 or not capture.ranks_present:
        return
    if not efficiency.backend:
        raise InsufficientEvidenceError("the traces do not name the backend of the process groups")
    if efficiency.backend != _CPU_BACKEND:
        return
    cost = times.mean_step().exposed_transfer_ns
    yield Draft(
        message=(
            f"The ranks compute on {efficiency.device}, but their collectives run on "
            f"{_CPU_BACKEND}."
        ),
        fix='Use init_process_group("nccl"), or "cpu:gloo,cuda:nccl".',
        cost_ns_per_step=cost or None,
        evidence=("efficiency.backend", "waterfall.all"),
    )
