"""Without traces: three quarters of the time in collectives, all of it waiting for rank 3."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.summaries.result import CollectiveSummaryResult
from tests.rules.samples import Results, changed, collective_summary, healthy


def results() -> Results:
    return {
        **changed(healthy(), StragglersResult, ranks=()),
        CollectiveSummaryResult: collective_summary(wait_ratio=0.75, blamed_ratio=0.95),
    }
