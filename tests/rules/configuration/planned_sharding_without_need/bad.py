"""Weights are sharded among 8 ranks, though 2 of tp and 4 of pp leave little of the state."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=2,pp=4,sharding=fsdp", batch=512)
