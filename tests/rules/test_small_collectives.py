"""Small collectives that are no gradients: activations of tensor parallelism, and scalars."""

from distprof.rules.engine import run_rules
from distprof.sections.collectives import CollectivesResult
from tests.rules.fixtures.placement import bad_mesh_order
from tests.rules.samples import US, collective_class, collectives, healthy


def found(*classes, **parts_ms):
    results = {**healthy(**parts_ms), CollectivesResult: collectives(*classes)}
    return {one.name: one for one in run_rules(results.values(), debug=True).findings}


def tiny(**fields):
    """A hundred all-reduces of 4 kB in each step."""
    usual = {
        "bytes": 4_096,
        "count": 500,
        "exposed_ns_per_step": 900 * US,
        "exposed_wait_ns_per_step": 100 * US,
    }
    return collective_class(**{**usual, **fields})


PARTS = {"exposed_transfer": 1.6, "communication_ms": 12.0}


def test_activations_of_tensor_parallelism_are_not_put_in_gradient_buckets():
    data = found(collective_class(), tiny(axis="dp"), **PARTS)["tiny-collectives"]
    assert data.fix.startswith("Merge them: gradient buckets")
    tensor = found(collective_class(), tiny(axis="tp"), **PARTS)["tiny-collectives"]
    assert "cannot be merged: use larger micro-batches" in tensor.fix
    assert "bucket" not in tensor.fix


def test_in_a_group_of_unknown_purpose_the_advice_says_what_cannot_be_merged():
    unnamed = tiny(axis=None, group="ranks 0-1 and 2-3")
    finding = found(collective_class(), unnamed, **PARTS)["tiny-collectives"]
    assert "If they reduce activations of tensor parallelism" in finding.fix
    named = found(collective_class(), tiny(axis="dp"), **PARTS)["tiny-collectives"]
    assert "activations" not in named.fix


def test_small_messages_of_an_axis_in_the_wrong_place_are_no_second_finding():
    misplaced = bad_mesh_order()
    for axis, names in (("tp", {"mesh-order"}), ("ep", {"mesh-order", "tiny-collectives"})):
        classes = collectives(collective_class(), tiny(axis=axis))
        results = {**misplaced, CollectivesResult: classes}
        told = {one.name for one in run_rules(results.values(), debug=True).findings}
        assert {"mesh-order", "tiny-collectives"} & told == names


def test_the_loss_is_no_transfer_that_could_overlap():
    parts = {"exposed_transfer": 3.8}
    loss = tiny(bytes=4, count=5)
    assert "low-overlap" not in found(loss, **parts)
    assert "low-overlap" in found(tiny(bytes=4_000_000, count=5), **parts)
