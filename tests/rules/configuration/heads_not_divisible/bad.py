"""Three ranks share 32 heads."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=3,sharding=fsdp", gpus=60, batch=20, per_node=6)
