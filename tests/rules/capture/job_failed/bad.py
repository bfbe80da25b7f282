"""A rank was killed; its peers noticed."""

from distprof.sections.job.result import JobError, JobFailure, JobResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(
        healthy(),
        JobResult,
        outcome="failed",
        failure=JobFailure(
            rank=2, kind="killed", message="rank 2 was killed (SIGKILL)", step=14, after_ns=None
        ),
        errors=(
            JobError(rank=1, kind="RuntimeError", message="closed", step=14, is_peer_loss=True),
        ),
    )
