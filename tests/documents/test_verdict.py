"""The verdict names what dominates, its share of the step, and what to do."""

from __future__ import annotations

import msgspec
import pytest

from distprof.documents.saved import Report
from distprof.escape import MAX_HEADLINE
from distprof.rules.base import Finding
from distprof.sections.ending import EndingResult
from distprof.sections.idle import IdleResult
from distprof.sections.job import JobFailure
from distprof.sections.shows import judge
from distprof.sections.stragglers import RankStraggler, StragglersResult
from distprof.terms import Severity, StepSource, StragglerCause, StragglerPattern
from tests.documents.job_samples import JOB, SAMPLES, failed_job
from tests.documents.samples import (
    MS,
    capture,
    capture_only,
    cpu_only,
    empty,
    finding,
    healthy,
    idle,
    many_ranks,
    report_of,
    run_info,
    single_rank,
    straggler,
    waterfall_of,
)


def said(report: Report) -> str:
    """The verdict and its evidence."""
    verdict = judge(report)
    return f"{verdict.headline}. {verdict.detail}".strip()


def two_ranks(**parts_ns: int) -> Report:
    return report_of([waterfall_of(rank, **parts_ns) for rank in range(2)])


def test_a_persistent_straggler_is_named_with_its_cost_and_cause() -> None:
    assert said(straggler()) == (
        "Rank 2 holds the others up: 31.0 % of each step. They wait 6.91 ms of every step for it. "
        "It runs the same kernels slower."
    )


def test_a_straggler_with_more_work_gets_the_advice_to_balance() -> None:
    assert said(many_ranks()) == (
        "Rank 37 holds the others up: 23.9 % of each step. They wait 5.98 ms of every step for it. "
        "It has more to compute."
    )


def test_waiting_without_a_clear_culprit_blames_nobody() -> None:
    report = two_ranks(computation_ns=600 * MS, exposed_wait_ns=400 * MS)
    line = said(report)
    assert "Ranks wait for each other for 40.0 % of each step. 40.0 ms of 100 ms" in line
    assert "No single rank is responsible" in line


@pytest.mark.parametrize(
    ("num_steps", "words"),
    [
        (
            4,
            "Rank 1 causes 90.0 % of that time by arriving last, but 4 steps cannot rule out",
        ),
        (13, "No single rank is responsible"),
    ],
)
def test_a_rank_that_few_steps_cannot_prove_is_not_said_to_be_no_one(
    num_steps: int, words: str
) -> None:
    waits = [waterfall_of(r, computation_ns=600 * MS, exposed_wait_ns=400 * MS) for r in range(2)]
    rows = [
        RankStraggler(
            rank=rank,
            lost_ns_per_step=lost * MS,
            share_of_step_ratio=lost / 100,
            late_ratio=0.5,
            pattern=StragglerPattern.NONE,
            cause=StragglerCause.UNKNOWN,
            confidence=0.0,
        )
        for rank, lost in ((0, 1), (1, 9))
    ]
    report = report_of(waits, num_steps=num_steps, stragglers=stragglers_result(*rows))
    assert words in said(report)


def test_a_rank_that_costs_less_than_half_of_the_waiting_is_not_blamed_alone() -> None:
    waits = [waterfall_of(r, computation_ns=600 * MS, exposed_wait_ns=400 * MS) for r in range(4)]
    minor = RankStraggler(
        rank=3,
        lost_ns_per_step=10 * MS,
        share_of_step_ratio=0.1,
        late_ratio=0.3,
        pattern=StragglerPattern.TRANSIENT,
        cause=StragglerCause.UNKNOWN,
        confidence=0.5,
    )
    report = report_of(waits, stragglers=stragglers_result(minor))
    assert "No single rank is responsible" in said(report)


def test_two_ranks_of_like_cost_are_named_together() -> None:
    waits = [waterfall_of(r, computation_ns=600 * MS, exposed_wait_ns=400 * MS) for r in range(4)]
    rows = [
        RankStraggler(
            rank=rank,
            lost_ns_per_step=lost * MS,
            share_of_step_ratio=lost / 100,
            late_ratio=0.5,
            pattern=StragglerPattern.PERSISTENT,
            cause=StragglerCause.UNKNOWN,
            confidence=0.9,
        )
        for rank, lost in ((1, 24), (2, 20))
    ]
    report = report_of(waits, stragglers=stragglers_result(*rows))
    assert said(report).startswith(
        "Ranks 1-2 hold the others up: 40.0 % of each step. 40.0 ms of 100 ms."
    )


def test_a_healthy_run_is_dominated_by_computation() -> None:
    assert said(healthy()) == (
        "Computation dominates: 91.9 % of each step. The largest other part is exposed "
        "transfer (3.57 %)."
    )


def test_pure_computation_needs_no_runner_up() -> None:
    line = said(two_ranks(computation_ns=100 * MS))
    assert line == "Computation takes 100 % of each step: only faster kernels would shorten it."


def test_a_single_rank_cannot_tell_waiting_from_transfer() -> None:
    verdict = judge(single_rank())
    assert verdict.headline == "Exposed communication takes 35.9 % of each step"
    assert verdict.detail == (
        "8.00 ms of 22.3 ms: record the other ranks too, because one rank cannot separate waiting "
        "from transfer."
    )
    assert "Ranks 1-7 were not recorded." in verdict.why


def test_without_step_marks_times_are_per_capture_and_that_is_said() -> None:
    verdict = judge(capture_only())
    assert verdict.headline.endswith("31.0 % of the whole capture")
    assert verdict.why[-1] == (
        "No step marks were found, so the whole capture counts as one window."
    )


def test_a_capture_window_that_was_asked_for_is_not_called_a_lack_of_marks() -> None:
    ranks = [waterfall_of(0, computation_ns=MS)]
    report = report_of(
        ranks, num_steps=1, source=StepSource.CAPTURE, capture=capture((0,), steps=(3, 4))
    )
    assert judge(report).why[-1] == "As requested, the whole capture counts as one window."


def test_input_bound_cpu_run_is_told_to_load_earlier() -> None:
    assert said(cpu_only()) == (
        "Waiting for input takes 43.7 % of each step. 10.0 ms of 22.9 ms. "
        "Load batches earlier and with more workers."
    )


def test_nothing_measured_says_why() -> None:
    verdict = judge(empty())
    assert verdict.headline == "Nothing could be measured"
    assert verdict.detail == "The trace holds no device activity."
    assert verdict.part == ""


@pytest.mark.parametrize(
    ("within_launch", "advice"),
    [(0, "Look at the gaps in a timeline."), (300 * MS, "Most of it is inside CUDA graphs")],
)
def test_idle_inside_graph_launches_is_told_from_other_idle(
    within_launch: int, advice: str
) -> None:
    ranks = [waterfall_of(0, computation_ns=600 * MS, idle_unknown_ns=400 * MS)]
    idle_rank = msgspec.structs.replace(idle(ranks[0]), within_launch_ns=within_launch)
    report = report_of(ranks, idle=IdleResult(ranks=(idle_rank,), pauses=()))
    assert advice in said(report)


def test_without_host_rows_the_advice_is_to_record_them() -> None:
    ranks = [waterfall_of(0, computation_ns=600 * MS, idle_unknown_ns=400 * MS)]
    report = report_of(ranks, idle=IdleResult(ranks=(), pauses=()))
    assert "also record CPU activities" in said(report)


@pytest.mark.parametrize(
    "part",
    [
        "exposed_transfer",
        "exposed_wait",
        "exposed_p2p_wait",
        "exposed_comm_unsplit",
        "exposed_copy",
        "idle_host",
        "idle_sync",
        "idle_input",
        "idle_comm_wait",
        "idle_unknown",
    ],
)
def test_every_part_can_dominate(part: str) -> None:
    report = two_ranks(**{"computation_ns": 600 * MS, f"{part}_ns": 400 * MS})
    verdict = judge(report)
    assert verdict.part == part
    assert "40.0 % of each step" in verdict.headline
    assert verdict.detail.startswith("40.0 ms of 100 ms")


def test_a_loss_below_five_percent_does_not_dominate() -> None:
    below = two_ranks(computation_ns=951 * MS, exposed_copy_ns=49 * MS)
    above = two_ranks(computation_ns=949 * MS, exposed_copy_ns=51 * MS)
    assert judge(below).part == "computation"
    assert judge(above).part == "exposed_copy"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_is_one_line_and_why_is_short(name: str) -> None:
    verdict = judge(SAMPLES[name]())
    assert verdict.headline
    assert not verdict.headline.endswith(".")
    assert len(verdict.headline) <= MAX_HEADLINE
    assert "\n" not in verdict.headline
    assert len(verdict.why) <= 5


def test_a_run_of_one_rank_is_complete() -> None:
    report = report_of(
        [waterfall_of(0, computation_ns=600 * MS, exposed_comm_unsplit_ns=400 * MS)],
        run=run_info((0,), world_size=1),
    )
    assert "record the other ranks" not in said(report)


def stragglers_result(*rows: RankStraggler) -> StragglersResult:
    return StragglersResult(
        ranks=rows,
        steps=(),
        pattern=rows[0].pattern,
        lost_ns_per_step=sum(row.lost_ns_per_step for row in rows),
        num_judged=100,
        num_below_residual=0,
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"failure": None}, "The job failed; it is unknown which rank failed first."),
        (
            {"failure": None, "outcome": "interrupted"},
            "The job was interrupted after step 14.",
        ),
        (
            {"failure": None, "outcome": "running"},
            "The job was still running, or its launcher was killed. Its last recorded step is 14.",
        ),
    ],
)
def test_how_a_job_ended_comes_first_then_what_was_measured(
    fields: dict[str, object], line: str
) -> None:
    report = failed_job()
    report = msgspec.structs.replace(report, job=msgspec.structs.replace(report.job, **fields))
    verdict = judge(report)
    assert said(report).startswith(line.rstrip("."))
    measured = judge(msgspec.structs.replace(report, job=JOB))
    assert f"{measured.headline}." in (verdict.detail, *verdict.why)


@pytest.mark.parametrize(
    ("kind", "cause", "ranks", "is_first"),
    [
        ("killed", "peer", (), True),
        ("killed", "exception", (1,), True),
        ("killed", "memory", (), False),  # why it was killed
        ("killed", "exception", (0,), False),
        ("exited", "exception", (1,), False),
        ("hung", "waiting", (), True),
        ("hung", "mismatch", (1,), True),
        ("hung", "exception", (1,), True),
        ("hung", "behind", (1,), False),
    ],
)
def test_a_rank_that_the_launcher_saw_die_comes_before_what_others_printed_of_it(
    kind: str, cause: str, ranks: tuple[int, ...], is_first: bool
) -> None:
    failure = JobFailure(rank=0, kind=kind, message="rank 0 died", step=3, after_ns=MS)
    printed = EndingResult(
        state="failed", cause=cause, verdict="Another rank lost the connection.", ranks=ranks
    )
    report = msgspec.structs.replace(
        failed_job(),
        job=msgspec.structs.replace(failed_job().job, failure=failure),
        ending=printed,
        findings=(finding(code="CAP104", message="It printed nothing."),),
    )
    first = ("Rank 0 died", "It printed nothing.")
    told = judge(report).headline, judge(report).detail
    assert told == (first if is_first else ("Another rank lost the connection", ""))


def test_a_host_between_operators_is_no_idle_device() -> None:
    report = two_ranks(computation_ns=600 * MS, idle_unknown_ns=400 * MS)
    report = msgspec.structs.replace(report, run=run_info((0, 1), device="cpu"))
    assert said(report) == (
        "The CPU spends 40.0 % of each step between operators (Python or blocked). 40.0 ms of "
        "100 ms. Use fewer, larger operators. Record stacks to see what runs between them."
    )


# The first finding is the verdict ----------------------------------------------------------------


def with_findings(*findings: Finding) -> Report:
    """Computation dominates, whatever findings say."""
    return msgspec.structs.replace(healthy(), findings=findings)


def test_the_first_finding_is_the_verdict_and_what_it_replaces_the_first_reason() -> None:
    verdict = judge(with_findings(finding()))
    assert (verdict.headline, verdict.detail) == (finding().headline, finding().message)
    assert verdict.why[0] == said(healthy())
    assert verdict.part == "computation"


def test_a_sentence_whose_numbers_the_finding_has_is_no_reason() -> None:
    own = said(healthy())
    verdict = judge(with_findings(finding(message=f"As measured: {own}")))
    assert own not in verdict.why


@pytest.mark.parametrize("fields", [{"code": "CAP101"}, {"severity": Severity.INFO}])
def test_the_recording_and_mere_information_are_not_the_verdict(fields: dict[str, object]) -> None:
    assert judge(with_findings(finding(**fields))) == judge(healthy())


def test_a_warning_on_the_job_is_the_verdict_although_one_on_the_recording_is_listed() -> None:
    job = finding(
        "NET102", severity=Severity.WARNING, headline="No GPUDirect", message="It is off."
    )
    assert said(with_findings(finding("CAP104"), job)) == "No GPUDirect. It is off."


def test_the_sentence_on_the_late_rank_leaves_out_a_time_that_its_finding_says() -> None:
    """The sentence has what the finding lacks: how often, how regularly, how surely."""
    report = straggler()
    said = next(text for text in judge(report).why if text.startswith("Rank 2 "))
    assert said.startswith("Rank 2 is last to arrive at 93.0 % of collectives: persistent pattern")
    unsaid = judge(msgspec.structs.replace(report, findings=()))
    assert any("and costs a typical other rank 6.91 ms" in text for text in unsaid.why)
