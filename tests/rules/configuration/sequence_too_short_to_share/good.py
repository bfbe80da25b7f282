"""Eight thousand tokens are left to a rank."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout(
        "cp=2,tp=2,sharding=fsdp,recomputation=full", model="llama2-70b", batch=16, sequence=16_384
    )
