"""A CPU that cannot run ahead makes its rank late, although its GPU hardly idles."""

from distprof.sections.stragglers.causes import cannot_run_ahead, launch_leads
from distprof.terms import StragglerCause
from tests.builders import RankBuilder, make_run

MS = 1_000_000


def rank_of(number, lead):
    """Three collectives, each launched ``lead`` before it starts."""
    rank = RankBuilder(number).step(0, 0, 400 * MS)
    for start in (100 * MS, 200 * MS, 300 * MS):
        rank.comm("nccl", start, start + MS, launched=(start - lead, start - lead + 5))
    return rank.rank()


def test_the_lead_is_the_time_from_launch_to_start():
    assert launch_leads(make_run([rank_of(0, 20 * MS), rank_of(1, MS)])) == {0: 20 * MS, 1: MS}


def test_a_short_lead_among_long_ones_is_a_late_cpu():
    cause = cannot_run_ahead(1, {0: 40 * MS, 1: MS, 2: 44 * MS, 3: 42 * MS})
    assert cause is not None
    assert cause.cause is StragglerCause.LATE_HOST
    assert "launches collectives 1.00 ms before they start" in cause.evidence[0]


def test_where_no_cpu_runs_ahead_a_short_lead_means_nothing():
    assert cannot_run_ahead(1, {0: MS, 1: MS // 20, 2: MS}) is None


def test_half_the_lead_of_the_others_is_no_reason():
    assert cannot_run_ahead(1, {0: 40 * MS, 1: 20 * MS, 2: 44 * MS}) is None


def test_nothing_is_said_without_launches():
    assert cannot_run_ahead(1, {0: 40 * MS}) is None
