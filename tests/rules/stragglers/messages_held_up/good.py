"""Rank 2 idles 4 ms longer on average, in steps that differ as much: it may be chance."""

from distprof.sections.stragglers.result import MessagesResult
from tests.rules.samples import MS, Results, healthy, messages


def results() -> Results:
    return {**healthy(), MessagesResult: messages({2: 4 * MS}, chance=0.3)}
