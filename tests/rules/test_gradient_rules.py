"""What rules on gradients say, beyond their fixtures."""

import msgspec
import pytest

from distprof.rules.engine import run_rules
from distprof.sections.gradients import GradientsResult
from distprof.sections.step_log import StepLogResult
from tests.rules.samples import MS, US, changed, gradient_group, gradients, healthy, step_log


def outcome(group, results=None):
    results = {**(results or healthy()), GradientsResult: gradients(group)}
    return run_rules(results.values(), debug=True)


def finding(code, group, results=None):
    found = {finding.code: finding for finding in outcome(group, results).findings}
    return found.get(code)


SLOW = {"exposed_ns_per_step": 1_200 * US, "transfer_ns": 8 * MS, "backward_ns": 4 * MS}


def test_a_small_batch_is_given_in_tokens_where_the_step_log_has_them():
    log = step_log(20 * MS)
    ranks = tuple(msgspec.structs.replace(rank, tokens_per_s=51_200.0) for rank in log.ranks)
    results = changed(healthy(), StepLogResult, ranks=ranks)  # 1,024 tokens in 20 ms
    message = finding("COM114", gradient_group(micro_batches=2.0, **SLOW), results).message
    assert "With 2 times the samples per micro-batch (1,024 tokens instead of 512) it" in message
    assert (
        "With 2 times the samples per micro-batch it"
        in finding("COM114", gradient_group(**SLOW)).message
    )


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        ({"times_reduced": None}, "COM110", "does not mark the updates"),
        ({"backward_ns": None, "before_first_ns": None}, "COM112", "when backward begins"),
        ({"backward_ns": None, "before_first_ns": None}, "COM114", "when backward begins"),
        ({"transfer_ns": None, "is_split": False}, "COM114", "not matched across ranks"),
    ],
)
def test_without_evidence_a_rule_says_what_is_missing(changes, code, why):
    skipped = {
        skipped.code: skipped.why for skipped in outcome(gradient_group(**changes)).not_checked
    }
    assert why in skipped[code]


def test_ddp_whose_collectives_cannot_be_told_is_not_checked():
    results = {**healthy(), GradientsResult: GradientsResult(unavailable=("no size",))}
    skipped = {skipped.code: skipped.why for skipped in run_rules(results.values()).not_checked}
    assert {"COM110", "COM111", "COM112", "COM113", "COM114"} <= set(skipped)
    assert skipped["COM110"] == "no size"


def test_full_precision_within_a_node_is_a_remark():
    wide = {"dtypes": ("float32",), "exposed_ns_per_step": 2_400 * US}
    slow = healthy(exposed_transfer=2.4, communication_ms=14.0)
    assert finding("COM111", gradient_group(**wide), slow).severity == "warning"
    assert finding("COM111", gradient_group(**wide, num_nodes=1), slow).severity == "info"
    assert finding("COM111", gradient_group(**wide, num_nodes=None), slow).severity == "info"


def test_without_matched_members_nobody_says_transfer():
    group = gradient_group(is_split=False, before_first_ns=10 * MS)
    late = finding("COM112", group)
    assert "including waiting for late ranks" in late.message
    assert late.confidence == "inferred"


LAST = {"num_buckets": 3, "last_bucket_ratio": 0.5}


def test_a_last_bucket_of_latency_is_told_to_grow():
    """α 600 µs, β such that the last bucket's bytes take 200 µs: three quarters are latency."""
    size = gradient_group().bytes
    group = gradient_group(bucket_latency_ns=6e5, bucket_ns_per_byte=2e5 / (size / 2), **LAST)
    found = finding("COM113", group)
    assert "75.0 % of its time is latency (600 µs per bucket)" in found.message
    assert found.fix.startswith("Make the buckets larger")
    # 2 of 3 latencies of 0.6 ms among 3 * 0.6 + 2 * 0.2 ms
    assert found.cost_ns_per_step == round(group.exposed_ns_per_step * 6 / 11)


@pytest.mark.parametrize("is_split", [True, False])
def test_buckets_that_wait_a_fixed_time_each_blame_no_size(is_split):
    """A fixed 5.7 ms: exposed communication comes first, and says what it waits for."""
    group = gradient_group(is_split=is_split, bucket_fixed_ns=5.7e6, **LAST)
    step = healthy(exposed_transfer=6.0)
    assert finding("COM113", group, step) is None
    found = finding("COM102", group, step)
    assert "takes 5.70 ms whatever its size: it waits for a late rank or a broken" in found.message
    assert found.fix.startswith("Find what each all-reduce waits for")


def test_a_last_bucket_of_bytes_saves_what_its_bytes_take():
    """α 1 ms, β 4 ms for the last half: a quarter of the gradients takes 1 + 2 of 1 + 4 ms."""
    size = gradient_group().bytes
    group = gradient_group(bucket_latency_ns=1e6, bucket_ns_per_byte=4e6 / (size / 2), **LAST)
    found = finding("COM113", group)
    assert found.fix.startswith("Make the buckets smaller")
    assert found.cost_ns_per_step == round(group.last_bucket_ns_per_step * 2 / 5)


def test_one_bucket_is_called_one_bucket_and_told_how_to_split():
    group = gradient_group(num_buckets=1, before_first_ns=10 * MS, last_bucket_ratio=1.0)
    late = finding("COM112", group)
    assert late.message.startswith("All gradients are in one bucket")
    assert "bucket_cap_mb=13" in late.fix
    assert finding("COM113", group) is None
