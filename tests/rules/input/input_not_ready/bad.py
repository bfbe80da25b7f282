"""First rank 4, then rank 0 is late with its input half of the time."""

from distprof.sections.summaries.result import InputReadinessResult, LatePeriod
from tests.rules.samples import Results, healthy


def results() -> Results:
    periods = tuple(
        LatePeriod(rank=rank, first_sample=first, num_samples=50, mean_ratio=0.5)
        for rank, first in ((4, 0), (0, 50))
    )
    late = InputReadinessResult(num_samples=100, job_ratio=0.5, periods=periods)
    return {**healthy(), InputReadinessResult: late}
