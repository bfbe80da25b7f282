"""What changed between two runs."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import distprof
from distprof.artefacts.summary_file import Fingerprint, StepParts, SummaryFile
from distprof.escape import MAX_HEADLINE
from distprof.rules.base import Finding
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.kernels import KernelRow, KernelsResult
from distprof.terms import Confidence, Severity
from distprof.verbs.compare.measure import Side, compare
from distprof.verbs.compare.show import (
    compare_reports,
    comparison_sentences,
    comparison_verdict,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def verdict_of(found):
    """Headline, which has to fit, and detail."""
    headline, detail = comparison_verdict(found)
    assert len(headline) <= MAX_HEADLINE
    return f"{headline}. {detail}".rstrip()


def parts(span, **some):
    names = [name for name in StepParts.__struct_fields__ if name not in ("span_ns", "other_ns")]
    values = {name: some.get(name, 0) for name in names}
    return StepParts(span_ns=span, other_ns=span - sum(values.values()), **values)


def kernel(name, total_ns, count=10, kind="computation"):
    return KernelRow(
        name=name,
        kind=kind,
        count=count,
        total_ns=total_ns,
        median_ns=total_ns // max(count, 1),
        slowest_rank=None,
        spread=None,
    )


def collective(axis="dp", group_size=4, size=1_000, exposed=100, wait=40, **fields):
    values = dict.fromkeys(CollectiveClass.__struct_fields__)
    values |= {"kind": "all_reduce", "group": axis, "axis": axis, "group_size": group_size}
    values |= {"bytes": size, "count": 20, "num_matched": 20}
    values |= {"exposed_ns_per_step": exposed, "exposed_wait_ns_per_step": wait}
    return CollectiveClass(**values | fields)


def problem(code, cost_ns):
    texts = dict.fromkeys(("name", "headline", "message", "fix", "docs"), "")
    places = dict.fromkeys(("ranks", "steps", "evidence"), ())
    judged = {"severity": Severity.INFO, "confidence": Confidence.MEASURED}
    return Finding(code=code, cost_ns_per_step=cost_ns, **texts, **places, **judged)


def side(*, kernels=(), collectives=(), problems=(), **summary):
    fields = {"distprof_version": "1", "created_ns": 1, "source": "here", "step_ns": (100,) * 9}
    return Side(
        summary=SummaryFile(**fields | summary),
        kernels=KernelsResult(categories=(), kernels=tuple(kernels), ranks=()),
        num_windows=10,
        collectives=CollectivesResult(num_ranks=2, num_steps=5, classes=tuple(collectives)),
        problems=tuple(problems),
    )


def changes(first, second):
    return compare(first, second)


def test_the_change_of_the_step_is_the_sum_of_the_changes_of_its_parts():
    first = side(parts=parts(1_000, computation_ns=700, exposed_transfer_ns=200))
    second = side(parts=parts(1_300, computation_ns=710, exposed_transfer_ns=450))
    found = changes(first, second).parts
    assert sum(part.change_ns for part in found) == 300
    assert {p.part: p.change_ns for p in found if p.change_ns} == {
        "computation": 10,
        "exposed_transfer": 250,
        "other": 40,
    }


def test_kernels_are_counted_per_rank_and_step_and_the_largest_change_comes_first():
    first = side(kernels=[kernel("gemm", 10_000), kernel("norm", 1_000), kernel("old", 500)])
    second = side(kernels=[kernel("gemm", 10_100), kernel("norm", 3_000), kernel("new", 700)])
    found = changes(first, second).kernels
    assert [(k.name, k.state, k.change_ns) for k in found] == [
        ("norm", "slower", 200),
        ("new", "appeared", 70),
        ("old", "vanished", -50),
        ("gemm", "alike", 10),
    ]


def test_a_kernel_that_may_be_in_the_folded_rest_is_not_called_vanished():
    first = side(kernels=[kernel("gemm", 10_000), kernel("rare", 500)])
    second = side(kernels=[kernel("gemm", 10_000), kernel("(7 other kernels)", 900, kind="other")])
    (rare,) = [k for k in changes(first, second).kernels if k.name == "rare"]
    assert (rare.state, rare.change_ns) == ("unlisted", 0)


def test_collectives_of_one_size_are_compared_by_size():
    first = side(collectives=[collective(size=10, exposed=50), collective(size=20, exposed=70)])
    second = side(collectives=[collective(size=10, exposed=90), collective(size=20, exposed=70)])
    found = changes(first, second).collectives
    assert [(c.bytes, c.state, c.change_ns) for c in found] == [
        (10, "slower", 40),
        (20, "alike", 0),
    ]


def test_of_groups_of_unlike_sizes_all_classes_are_added_up():
    first = side(collectives=[collective(size=10, exposed=50), collective(size=20, exposed=70)])
    second = side(collectives=[collective(group_size=8, size=5, exposed=200)])
    (found,) = changes(first, second).collectives
    assert (found.bytes, found.first_exposed_ns, found.second_exposed_ns) == (None, 120, 200)
    assert found.first_busbw_bytes_per_s is None


def test_unknown_exposure_is_no_change():
    first = side(collectives=[collective(exposed=None)])
    (found,) = changes(first, side(collectives=[collective(exposed=90)])).collectives
    assert (found.state, found.change_ns) == ("unlisted", 0)


def test_findings_that_are_new_come_first():
    first = side(problems=[problem("COM101", 5), problem("A1", 9)])
    second = side(problems=[problem("COM101", 7), problem("B1", 1)])
    found = [(f.code, f.state) for f in changes(first, second).findings]
    assert found == [("B1", "new"), ("COM101", "both"), ("A1", "gone")]


def test_another_device_is_not_like_for_like():
    first = side(fingerprint=Fingerprint(device="A"))
    comparison = changes(first, side(fingerprint=Fingerprint(device="B")))
    assert not comparison.is_alike
    assert comparison.differences[0].forbids


def test_steps_under_a_profiler_are_not_compared_with_others():
    traced = side(is_traced=True, step_ns=(200,) * 9, parts=parts(200))
    plain = side(step_ns=(100,) * 9, parts=parts(180))
    comparison = changes(traced, plain)
    assert comparison.step.second_ns == 180
    assert comparison.step.trend == "unknown"
    assert "traced" in comparison.unavailable[0]


def test_few_steps_that_take_as_long_are_not_faster_by_nothing():
    found = changes(side(step_ns=(100, 101)), side(step_ns=(101, 100)))
    assert verdict_of(found) == (
        "Both runs take 100 ns per step (too few steps to rule out chance)."
    )


def test_steps_that_one_outlier_keeps_undecided_are_not_called_alike():
    """Five of six steps are shorter than all of the other run; one is longer than these."""
    first = side(step_ns=(150, 151, 152, 153, 154, 155))
    second = side(step_ns=(120, 121, 122, 123, 124, 400))
    found = changes(first, second)
    assert found.step.trend == "alike"
    assert found.step.num_apart == 5
    assert verdict_of(found) == (
        "Undecided, since chance may explain it (p = 0.065). 122 ns per step instead of 152 ns "
        "(−19.7 %). 5 of 6 steps of the second run are shorter than all of the first: look at "
        "the others, and compare more steps."
    )


def test_absence_of_a_difference_is_not_claimed():
    found = changes(side(step_ns=(99, 100, 101) * 3), side(step_ns=(100, 101, 99) * 3))
    assert verdict_of(found) == ("No difference found: 100 ns per step instead of 100 ns (+0 %).")


@pytest.mark.parametrize(
    ("second", "words"),
    [(260, "takes 2.6 × as long"), (2, "takes 0.02 × as long"), (190, "is 90.0 % slower"),
     (60, "is 40.0 % faster")],
)  # fmt: skip
def test_large_changes_are_multiples_of_the_whole(second, words):
    found = changes(side(step_ns=(100,) * 9), side(step_ns=(second,) * 9))
    assert verdict_of(found).startswith(f"The second run {words}: ")


def test_unlike_runs_are_said_in_the_first_sentence():
    first = side(fingerprint=Fingerprint(device="H100", world_size=8))
    second = side(fingerprint=Fingerprint(device="A100", world_size=8), step_ns=(130,) * 9)
    found = changes(first, second)
    assert verdict_of(found).startswith("Not like for like: device H100 → A100. The ")
    long = side(fingerprint=Fingerprint(device="A" * 99, world_size=4))
    assert verdict_of(changes(first, long)).startswith(
        "Not like for like: another device, 1 more. "
    )


def test_only_what_both_runs_record_is_called_the_same():
    both = Fingerprint(device="H100", world_size=8)
    told = list(comparison_sentences(changes(side(fingerprint=both), side(fingerprint=both))))
    assert told[0] == "The same in both runs: device, world size. The program is not recorded."
    told = list(comparison_sentences(changes(side(), side())))
    assert told[0] == "Neither hardware nor program is recorded by both runs: they may be unlike."


def test_kernels_show_that_two_runs_may_be_of_different_programs():
    same = Fingerprint(device="H100", world_size=8)
    first = side(kernels=[kernel("gemm", 900), kernel("norm", 100)], fingerprint=same)
    second = side(kernels=[kernel("conv", 900), kernel("norm", 100)], fingerprint=same)
    found = changes(first, second)
    assert found.common_kernels_ratio == 0.1
    assert verdict_of(found).startswith(
        "Perhaps not like for like: only 10.0 % of computation is in common kernels. "
    )
    assert "Perhaps" not in verdict_of(changes(first, first))


def test_a_run_without_steps_is_not_said_to_have_plain_ones():
    found = changes(side(is_traced=True, parts=parts(100)), side(step_ns=()))
    assert not any("without a profiler" in text for text in found.unavailable)
    assert not any("Medians" in text for text in comparison_sentences(found))


def test_a_headline_never_has_opposite_signs():
    """Plain steps grew by 45 %, traced ones shrank: the split explains nothing of the growth."""
    first = side(step_ns=(100,) * 9, parts=parts(300, computation_ns=250))
    second = side(step_ns=(145,) * 9, parts=parts(221, computation_ns=131))
    found = changes(first, second)
    assert verdict_of(found) == (
        "The second run is 45.0 % slower: 145 ns per step instead of 100 ns."
    )
    told = " ".join(comparison_sentences(found))
    assert "Traced steps changed in the opposite direction (300 ns → 221 ns)" in told


def test_plain_and_traced_steps_are_in_separate_sentences():
    first = side(step_ns=(100,) * 9, parts=parts(300, computation_ns=250))
    second = side(step_ns=(145,) * 9, parts=parts(400, computation_ns=345))
    found = changes(first, second)
    assert "computation" not in verdict_of(found)
    told = " ".join(comparison_sentences(found))
    assert "In traced steps (300 ns → 400 ns), computation accounts for +95 ns of +100 ns." in told


def test_traced_steps_alone_name_the_part_in_the_verdict():
    first = side(step_ns=(300,) * 9, is_traced=True, parts=parts(300, computation_ns=250))
    second = side(step_ns=(400,) * 9, is_traced=True, parts=parts(400, computation_ns=345))
    verdict = verdict_of(changes(first, second))
    assert verdict.endswith(". Computation accounts for +95 ns of +100 ns.")


def test_a_part_that_others_make_up_for_is_said_to_be():
    first = side(step_ns=(300,) * 9, is_traced=True, parts=parts(300, computation_ns=250))
    second = side(step_ns=(330,) * 9, is_traced=True, parts=parts(330, computation_ns=330))
    verdict = verdict_of(changes(first, second))
    assert verdict.endswith(". Computation accounts for +80 ns, other parts for −50 ns.")


def test_mixed_runs_compare_one_mean_traced_step_each_and_no_throughput():
    traced = side(is_traced=True, step_ns=(200,) * 9, parts=parts(210), tokens_per_step=1.0)
    plain = side(step_ns=(100,) * 9, parts=parts(180), tokens_per_step=1.0)
    found = changes(traced, plain)
    assert (found.step.first_ns, found.step.second_ns) == (210, 180)
    told = " ".join(comparison_sentences(found))
    assert "one mean traced step per run" in told
    assert "Throughput" not in told


@pytest.mark.parametrize("name", ["job/gloo-hsdp-4ranks", "kineto/dlrm-v100-8gpu"])
def test_a_report_compared_with_itself_shows_no_change(name):
    report = distprof.analyze(GOLDEN / name)
    comparison = compare_reports(report, report)
    assert comparison.is_alike
    assert comparison.step.change_ns == 0
    assert all(part.change_ns == 0 for part in comparison.parts)
    assert all(kernel.state in ("alike", "unlisted") for kernel in comparison.kernels)
    assert all(one.change_ns == 0 for one in comparison.collectives)
    assert {finding.state for finding in comparison.findings} <= {"both"}


def test_a_comparison_survives_being_saved():
    comparison = changes(side(kernels=[kernel("a", 1)]), side(parts=parts(5)))
    saved = msgspec.json.encode(comparison)
    assert msgspec.json.decode(saved, type=type(comparison)) == comparison


def test_sides_without_anything_are_compared():
    empty = replace(side(step_ns=()), num_windows=0)
    comparison = changes(empty, empty)
    assert comparison.step.trend == "unknown"
    assert comparison.kernels == ()
