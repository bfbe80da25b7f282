"""Copies from pageable memory take 0.6 ms of each step of 20.4 ms, with nothing beside them."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import MS, RANKS, Results, feed, healthy, settings


def results() -> Results:
    slow = tuple(feed(rank, pageable_ns=4 * MS, exposed_pageable_ns=3 * MS) for rank in RANKS)
    return {**healthy(exposed_copy=0.6), SettingsResult: settings(feed=slow)}
