"""# job-failed

## What it detects
The job did not complete: a rank died, hung, was stopped or ran out of memory.

## Why it costs time
The job loses all its time since the last checkpoint. Measurements from before the failure may
already show the cause: growing memory on one rank, a GPU that slows down.

## Evidence needed
A run directory: the launcher records evidence of which rank failed first. Errors that other ranks
report after they lost a peer never count as the cause. The rule is silent for bare traces.

## How the cost is computed
No cost per step.

## How to fix
Read `output.log` and `error.json` in the folder of the named rank, and `stacks.txt` if a rank hung.
The `output.log` of a captured program is in the run directory. Out of memory: use a smaller
micro-batch, activation checkpointing, or more shards. Killed from outside: look at the log of the
scheduler and at the kernel log of the host.

## When it is wrong
A user may have stopped the job on purpose, with a signal that looks like a crash.

## Sources
PyTorch documentation of `torch.distributed.elastic` (error propagation); PyTorch pull request 61342
on the errors that peers see.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.job.result import JobResult
from distprof.terms import Severity
from distprof.units import capitalized

_FIXES = {
    "out_of_memory": (
        "Use a smaller micro-batch, checkpoint activations, or shard over more ranks. The memory "
        "table shows how much each rank used."
    ),
    "stopped": (
        "Find out what stopped the process (SIGSTOP, a debugger): the job itself did not fail."
    ),
    "killed": (
        "It was killed from outside: look at the log of the scheduler and at the kernel log of "
        "the host."
    ),
}
_HUNG = "Read stacks.txt of that rank: it shows where its Python code hung."
_ATTACH = (
    "Run distprof hang on the run directory, and distprof attach while the ranks are still running."
)


def _fix(job: JobResult) -> str:
    """What to read next."""
    failure = job.failure
    kind = failure.kind if failure else ""
    if kind == "hung":
        return _HUNG if job.kind == "run" else _ATTACH
    if kind in _FIXES:
        return _FIXES[kind]
    rank = failure.rank if failure else None
    has_error = any(rank in (None, error.rank) for error in job.errors)
    folder = "in the folder of that rank" if rank is not None else "in the folders of the ranks"
    if job.kind == "run":
        return f"Read {'error.json and ' if has_error else ''}output.log {folder}."
    return f"Read output.log of the run{f', and error.json {folder}' if has_error else ''}."


@rule(
    code="CAP104",
    severity=Severity.ERROR,
    since="0.1.0",
    costs_time=False,
)
def check(job: JobResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - no limits
    """Yield one finding for a failed job."""
    if job.outcome != "failed":
        return
    failure = job.failure
    message = (
        failure.message if failure else "the job failed; it is unknown which rank failed first"
    )
    message = " ".join(message.split()).rstrip(".")
    own = next((error for error in job.errors if not error.is_peer_loss), None)
    if own is not None and (failure is None or own.rank == failure.rank):
        words = " ".join(own.message.split())[:200]
        message += "" if words in message else f": {own.kind}: {words}"
    yield Draft(
        message=f"{capitalized(message)}.",
        fix=_fix(job),
        ranks=(failure.rank,) if failure and failure.rank is not None else (),
        evidence=("job.failure", "job.exits", "job.errors"),
    )
