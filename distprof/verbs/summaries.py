"""Reads summaries from reports, run directories, traces and files of summaries."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from distprof.artefacts.record import grouped
from distprof.artefacts.summary_file import SUMMARY_SCHEMA, Fingerprint, StepParts, SummaryFile
from distprof.bounds import Bound, read_plain, wrong_number
from distprof.documents.saved import Report
from distprof.errors import DistprofError, InputError
from distprof.ingest.measurements import fits_measurements, read_measurements
from distprof.ingest.recognise import Kind, fresh_report_in, kind_of, runs_inside
from distprof.sections.metrics import (
    bubble_ratio,
    expert_imbalance_ratio,
    exposed_communication_ratio,
    overlap_ratio,
    peak_memory_bytes,
)

BOUND = Bound(reads="a file of summaries", num_bytes=1 << 26, depth=1_000)


def load_summaries(sources: Sequence[str | os.PathLike[str]]) -> tuple[SummaryFile, ...]:
    """One summary per run in the sources, in their order."""
    return tuple(chain.from_iterable(_summaries_of(os.fspath(source)) for source in sources))


def open_report(
    source: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None
) -> Report:
    """The report of a run: the saved report if there is one, else a new analysis."""
    from distprof.api import analyze, open_run
    from distprof.documents.saved import load_report

    if kind_of(os.fspath(source)) is Kind.REPORT:
        return load_report(source)
    fresh = fresh_report_in(os.fspath(source))
    if fresh is not None:
        try:
            return load_report(fresh)
        except DistprofError:  # from another version: analyse the run itself
            pass
    return analyze(open_run(source, cache_dir=cache_dir))


def _summaries_of(source: str) -> list[SummaryFile]:
    if kind_of(source) is Kind.SUMMARIES:
        return _read_summaries(Path(source))
    if Path(source).is_file() and fits_measurements(source):
        return list(read_measurements(source))
    return [summarize_report(open_report(run)) for run in (*runs_inside(source),) or (source,)]


def _read_summaries(path: Path) -> list[SummaryFile]:
    expected = f'one or more summaries with "schema": "{SUMMARY_SCHEMA}"'
    fix = "make it again with: distprof scale --save-summaries FILE"
    try:
        data = json.loads(read_plain(path, BOUND.num_bytes))
        found = data if isinstance(data, list) else [data]
        read = msgspec.convert(found, list[SummaryFile])
    except (OSError, ValueError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(str(path), expected=expected, found=str(error), fix=fix) from error
    others = (f'"schema": "{one.schema}"' for one in read if one.schema != SUMMARY_SCHEMA)
    wrong = wrong_number(found) or next(others, "")
    if wrong:
        raise InputError(str(path), expected=expected, found=wrong, fix=fix)
    return read


# The metrics of a report that are compared between runs, sizes and commits -----------------------

_CPU = "cpu"


def summarize_report(report: Report, *, label: str = "") -> SummaryFile:
    """The summary of a report, as baselines, histories and sweeps store it."""
    job, log, printed = report.job, report.step_log, report.training_log
    plain, traced = log.samples_ns, _traced_steps(report)
    # What the probes recorded, or else what the training program printed
    tokens, samples = log.tokens_per_step, log.samples_per_step
    slowdown = report.whatif.slowdown
    return SummaryFile(
        distprof_version=report.distprof_version,
        source=report.run.source,
        label=label,
        git_commit=job.git_commit,
        created_ns=job.ended_ns or job.started_ns or time.time_ns(),
        fingerprint=_fingerprint(report),
        step_ns=plain or traced or printed.steady_ns,
        is_traced=bool(traced) and not plain,
        tokens_per_step=printed.tokens_per_step if tokens is None else tokens,
        samples_per_step=printed.global_batch_size if samples is None else samples,
        parts=_parts(report),
        overlap_ratio=overlap_ratio(report),
        exposed_comm_ratio=exposed_communication_ratio(report),
        bubble_ratio=bubble_ratio(report),
        imbalance_ratio=None if slowdown is None else slowdown - 1,
        expert_imbalance_ratio=expert_imbalance_ratio(report),
        mfu_ratio=report.efficiency.mfu_ratio,
        energy_per_step_j=report.telemetry.energy_per_step_j,
        peak_memory_bytes=peak_memory_bytes(report),
    )


def _fingerprint(report: Report) -> Fingerprint:
    run, job, printed = report.run, report.job, report.training_log
    return Fingerprint(
        world_size=run.world_size or printed.world_size,
        num_nodes=len(run.nodes) or None,
        device=_device(report),
        backend=run.backend,
        workload=job.workload or " ".join(job.command),
        strategy=run.strategy or "",
        mesh=run.mesh or printed.mesh,
        config=job.config
        | ({"faults": ", ".join(fault.text for fault in job.faults)} if job.faults else {}),
        versions={**run.versions, "distprof": report.distprof_version},
        environment=job.environment,
    )


def _device(report: Report) -> str:
    """Device of the ranks; for CPU ranks with the CPU model, which distinguishes machines."""
    device = report.run.device
    if device != _CPU:
        return device
    models = sorted({host.processor for host in report.settings.hosts if host.processor})
    return f"{device} ({', '.join(models)})" if models else device


def _traced_steps(report: Report) -> tuple[int, ...]:
    """Durations of the analysed steps on the median rank."""
    if report.step_time.median_ns is None:
        return ()
    by_step = grouped([(row.step, row.span_ns) for row in report.breakdown.steps])
    return tuple(int(np.median(by_step[step])) for step in sorted(by_step))


def _parts(report: Report) -> StepParts | None:
    """The mean step, averaged over ranks, rounded so that its parts add up to it."""
    total, falls = report.waterfall.all, report.waterfall
    if total is None or report.step_time.median_ns is None:
        return None
    share = max(1, falls.num_ranks * falls.num_steps)
    is_pipeline = bool(report.pipeline.groups) or "pp" in report.run.mesh
    message_wait = total.exposed_p2p_wait_ns // share
    parts = {
        "computation_ns": total.computation_ns // share,
        "exposed_transfer_ns": total.exposed_transfer_ns // share,
        "exposed_wait_ns": total.exposed_wait_ns // share + (0 if is_pipeline else message_wait),
        "bubble_ns": message_wait if is_pipeline else 0,
        "unsplit_comm_ns": total.exposed_comm_unsplit_ns // share,
        "host_ns": (total.idle_host_ns + total.idle_sync_ns + total.idle_pause_ns) // share,
        "input_ns": total.idle_input_ns // share,
        "copy_ns": total.exposed_copy_ns // share,
    }
    span = total.span_ns // share
    return StepParts(span_ns=span, other_ns=span - sum(parts.values()), **parts)
