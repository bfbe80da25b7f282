"""What rules on computation need, and what they do without."""

import pytest
from msgspec.structs import replace

from distprof.rules import find_rule
from distprof.rules.engine import run_rules
from distprof.sections.computation import NO_SHAPES, ComputationResult
from tests.rules.fixtures.computation import bad_converted_layouts, bad_unfused_optimizer


def outcome_of(code, results):
    return run_rules(results.values(), rules=[find_rule(code)])


@pytest.mark.parametrize(
    ("code", "results", "reason", "fires"),
    [
        ("CMP104", bad_unfused_optimizer(), "limits were measured on another GPU", True),
        ("CMP104", bad_unfused_optimizer(), NO_SHAPES, False),
        ("CMP106", bad_converted_layouts(), NO_SHAPES, True),  # names of kernels are enough
    ],
)
def test_a_rule_is_silent_only_without_what_it_needs(code, results, reason, fires):
    computation = replace(results[ComputationResult], unavailable=(reason,))
    outcome = outcome_of(code, {**results, ComputationResult: computation})
    assert bool(outcome.findings) is fires
    assert bool(outcome.not_checked) is not fires
