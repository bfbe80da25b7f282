"""The first lines of a report on NCCL's logs alone, in which no step was timed."""

from __future__ import annotations

from distprof.analyzers.nccl import BETWEEN, INSIDE, NcclResult, NcclTransport
from distprof.report.model import Report
from distprof.report.parts import is_of_nccl_alone
from distprof.units import format_duration, format_ratio

__all__ = ["nccl_verdict", "transport_name"]


def nccl_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    result = report.nccl
    if not is_of_nccl_alone(report):
        return None
    why = (_init(result), _warnings(result), _read(result))
    return _line(result), tuple(sentence for sentence in why if sentence)


def transport_name(way: NcclTransport) -> str:
    """For example ``NET/IB with GPUDirect RDMA``."""
    return f"{way.transport} with GPUDirect RDMA" if way.has_gdr else way.transport


def _line(result: NcclResult) -> str:
    parts = [_share(result, BETWEEN), _share(result, INSIDE)]
    told = "; ".join(part for part in parts if part)
    if not told:
        return "The log names no connection between ranks."
    return f"{told[:1].upper()}{told[1:]}."


def _share(result: NcclResult, where: str) -> str:
    """For example ``between nodes all connections use NET/IB with GPUDirect RDMA``."""
    ways = [way for way in result.transports if way.where == where]
    total = sum(way.num_lines for way in ways)
    if not total:
        return ""
    most = max(ways, key=lambda way: way.num_lines)
    ratio = most.num_lines / total
    share = "all" if len(ways) == 1 else f"{format_ratio(ratio)} of the"
    return f"{where} {share} connections use {transport_name(most)}{_doubt(most)}"


def _doubt(way: NcclTransport) -> str:
    without = way.where == BETWEEN and way.transport != "NET/Socket" and not way.has_gdr
    return ", without GPUDirect RDMA" if without else ""


def _init(result: NcclResult) -> str:
    slowest = max((group.init_ns or 0 for group in result.groups), default=0)
    number = sum(group.num_communicators for group in result.groups)
    if not number:
        return ""
    largest = result.groups[0].num_ranks
    several = "s" if number > 1 else ""
    text = f"{number:,} communicator{several}, the largest of {largest:,} ranks"
    return (
        f"{text}; the slowest took {format_duration(slowest)} to begin." if slowest else f"{text}."
    )


def _warnings(result: NcclResult) -> str:
    problems = [w for w in result.warnings if w.about == "problem"]
    if not problems:
        return ""
    number = sum(warning.num_lines for warning in problems)
    times = "once" if number == 1 else f"{number:,} times"
    return f"NCCL warns {times}: {problems[0].text.rstrip('.')}."


def _read(result: NcclResult) -> str:
    if not result.num_unknown:
        return ""
    return f"Of {result.num_texts:,} texts of NCCL, {result.num_unknown:,} are not known."
