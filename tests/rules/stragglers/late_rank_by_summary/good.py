"""A fifth of the time in collectives is waiting, as much as may be."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.summaries.result import CollectiveSummaryResult
from tests.rules.samples import Results, changed, collective_summary, healthy


def results() -> Results:
    return {
        **changed(healthy(), StragglersResult, ranks=()),
        CollectiveSummaryResult: collective_summary(wait_ratio=0.2, blamed_ratio=0.95),
    }
