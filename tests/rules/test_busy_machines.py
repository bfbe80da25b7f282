"""Findings where other processes take the CPUs: who is to blame is uncertain, and rules say so."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.rules import find_rule
from distprof.rules.engine import run_rules
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.job import JobError, JobFailure, JobResult
from distprof.sections.pipeline import PipelineResult
from distprof.sections.settings import ConfinedRank, SettingsResult
from distprof.sections.shares import medians_of_others
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import MessagesResult, StragglerSet, StragglersResult
from distprof.terms import StragglerCause, StragglerPattern
from tests.rules.fixtures import input as of_input
from tests.rules.fixtures import job, pipeline, stragglers
from tests.rules.samples import MS, RANKS, healthy, messages, pauses, settings, step_log


@given(st.lists(st.integers(0, 6), min_size=2, max_size=9))
def test_medians_of_others_are_those_of_the_lists_without_each(values):
    expected = [median(values[:row] + values[row + 1 :]) for row in range(len(values))]
    assert medians_of_others(values) == expected


def outcome_of(code, results):
    return run_rules(results.values(), rules=[find_rule(code)])


def on_cpus(results, **of_pauses):
    """The same on CPU ranks."""
    idle = replace(results[IdleResult], is_cpu=True)
    return {**results, IdleResult: idle, PausesResult: pauses(**of_pauses)}


def test_a_machine_that_is_busy_for_all_ranks_blames_none():
    results = on_cpus(healthy(), queue_ns=dict.fromkeys(RANKS, 5 * MS))
    found = outcome_of("HST110", results).findings
    assert [one.ranks for one in found] == [tuple(RANKS)]
    assert "The machine is busy" in found[0].headline
    assert "may be late by chance" in found[0].message


def test_a_rank_that_waits_far_longer_for_a_cpu_than_others_is_named():
    waits = dict.fromkeys(RANKS, 2 * MS) | {1: 6 * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={})
    found = outcome_of("HST110", results).findings
    assert [one.ranks for one in found] == [(1,)]
    assert "take the CPU of rank 1" in found[0].headline


@pytest.mark.parametrize(
    ("most_ms", "named"),
    [
        pytest.param(14, tuple(RANKS), id="twice as long, by chance"),
        pytest.param(40, (1,), id="six times as long"),
    ],
)
def test_on_a_busy_machine_a_rank_is_named_only_for_a_clear_difference(most_ms, named):
    waits = dict.fromkeys(RANKS, 6.5 * MS) | {1: most_ms * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={})
    assert [one.ranks for one in outcome_of("HST110", results).findings] == [named]


def test_on_a_busy_machine_a_rank_is_compared_with_the_other_that_waits_longest():
    """Three times the median, and twice the next."""
    waits = dict.fromkeys(RANKS, 4 * MS) | {1: 12 * MS, 2: 6 * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={})
    assert [one.ranks for one in outcome_of("HST110", results).findings] == [tuple(RANKS)]


@pytest.mark.parametrize(("num_cpus", "named"), [(1, (1,)), (64, tuple(RANKS))])
@pytest.mark.parametrize("times", [1.8, 2.2])
def test_that_a_rank_may_use_few_cpus_is_a_reason_to_name_it(num_cpus, named, times):
    """It waits about twice as long as the others, which also happens by chance."""
    confined = ConfinedRank(rank=1, num_cpus=num_cpus, usual_cpus=64)
    hosts = [replace(one, confined=()) for one in settings().hosts]
    if num_cpus < 64:
        hosts[0] = replace(hosts[0], confined=(confined,))
    waits = dict.fromkeys(RANKS, 5 * MS) | {1: times * 5 * MS}
    results = {
        **on_cpus(healthy(), queue_ns=waits, cpu_ns={}),
        SettingsResult: settings(hosts=tuple(hosts)),
    }
    (found,) = outcome_of("HST110", results).findings
    assert found.ranks == named
    assert ("Rank 1 may use 1 CPU, the median rank of its host 64." in found.message) == (
        named == (1,)
    )
    assert ("cpuset" in found.fix) == (named == (1,))


@pytest.mark.parametrize(
    ("crowded", "named"),
    [
        pytest.param((), (1,), id="CPUs of its own"),
        pytest.param((1, 2), (1, 2), id="it shares them with a rank that waits as long"),
        pytest.param((0, 1, 2), None, id="it shares them with a rank that waits less"),
    ],
)
def test_which_of_the_ranks_on_the_same_busy_cpus_waits_longest_is_chance(crowded, named):
    waits = dict.fromkeys(RANKS, 1 * MS) | {1: 20 * MS}
    if named == (1, 2):
        waits[2] = 20 * MS
    first, *others = (replace(one, confined=()) for one in settings().hosts)
    hosts = (replace(first, crowded=crowded), *others)
    results = {
        **on_cpus(healthy(), queue_ns=waits, cpu_ns={}),
        SettingsResult: settings(hosts=hosts),
    }
    (found,) = outcome_of("HST110", results).findings
    assert ("The machine is busy" in found.headline) == (named is None)
    assert named is None or found.ranks == named


@pytest.mark.parametrize(
    ("without_spare", "named", "is_blamed"),
    [
        pytest.param((), (1,), True, id="CPUs to spare"),
        pytest.param((0, 1), (0, 1), False, id="two ranks on two CPUs"),
    ],
)
def test_ranks_on_as_few_cpus_as_they_are_compete_even_if_nothing_else_runs(
    without_spare, named, is_blamed
):
    waits = dict.fromkeys(RANKS, 0.1 * MS) | {1: 6 * MS}
    first, *others = (replace(one, confined=()) for one in settings().hosts)
    results = {
        **on_cpus(healthy(), queue_ns=waits, cpu_ns={}),
        SettingsResult: settings(hosts=(replace(first, without_spare=without_spare), *others)),
    }
    (found,) = outcome_of("HST110", results).findings
    assert found.ranks == named
    assert ("The machine is busy" not in found.headline) == is_blamed
    assert ("no more CPUs than ranks" not in found.message) == is_blamed


def test_a_rank_that_waits_a_quarter_of_the_longest_is_not_named_with_it():
    """Where others take one CPU, ranks that run there now and then wait, too."""
    waits = {1: 12 * MS, 2: 3 * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={})
    found = outcome_of("HST110", results).findings
    assert [one.ranks for one in found] == [(1,)]
    assert "the other ranks 3.00 ms at most" in found[0].message


def test_a_rank_that_runs_longer_waits_longer_and_is_not_named():
    waits = dict.fromkeys(RANKS, 2 * MS) | {1: 6 * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={1: 30 * MS})
    assert [one.ranks for one in outcome_of("HST110", results).findings] == [tuple(RANKS)]


def test_a_rank_that_runs_less_and_waits_about_as_long_as_others_is_not_named():
    waits = dict.fromkeys(RANKS, 4 * MS) | {1: 5 * MS}
    results = on_cpus(healthy(), queue_ns=waits, cpu_ns={1: 4 * MS})
    assert [one.ranks for one in outcome_of("HST110", results).findings] == [tuple(RANKS)]


@pytest.mark.parametrize(("queue_ms", "is_found"), [(0, True), (6, True), (9, False)])
def test_late_input_counts_only_where_loaders_do_not_wait_as_long_for_a_cpu(queue_ms, is_found):
    """Rank 3 waits 1.8 ms longer for its input than the others."""
    results = of_input.bad_uneven_input()
    results[PausesResult] = pauses(queue_ns=dict.fromkeys(RANKS, queue_ms * MS))
    outcome = outcome_of("INP102", results)
    assert bool(outcome.findings) == is_found
    assert is_found or "the machine is busy" in outcome.not_checked[0].why


@pytest.mark.parametrize(("lacks_ms", "is_found"), [(0.5, True), (1.2, False)])
def test_late_input_counts_only_where_the_loader_has_a_cpu(lacks_ms, is_found):
    results = of_input.bad_uneven_input()
    results[PausesResult] = pauses(loader_queue_ns={3: lacks_ms * MS})
    outcome = outcome_of("INP102", results)
    assert bool(outcome.findings) == is_found
    assert (
        is_found
        or "its loader spends 1.20 ms of that waiting for a free CPU" in outcome.not_checked[0].why
    )


@pytest.mark.parametrize(
    ("queue_ms", "ran_ms", "is_found"),
    [
        pytest.param(1, 13, True, id="a quiet machine"),
        pytest.param(1, 10, False, id="a profiler slows its traced steps"),
        pytest.param(8, 13, True, id="it runs longer too"),
        pytest.param(8, 11, False, id="it only waits"),
    ],
)
def test_a_stage_on_a_busy_machine_is_slow_only_if_it_runs_longer(queue_ms, ran_ms, is_found):
    """Stage 1 takes 30 % longer: 4.8 ms of each step."""
    slow = pipeline.bad_unequal_stages()
    busiest = slow[PipelineResult].positions[1]
    results = on_cpus(
        slow,
        queue_ns=dict.fromkeys(RANKS, queue_ms * MS),
        cpu_ns=dict.fromkeys(busiest.ranks, ran_ms * MS),
    )
    outcome = outcome_of("PIP101", results)
    assert bool(outcome.findings) == is_found
    assert is_found or "other processes take its CPU" in outcome.not_checked[0].why


@pytest.mark.parametrize(
    ("excess_ratio", "has_spare", "is_found"),
    [(0.1, True, True), (0.1, False, False), (0.4, False, True)],
)
def test_a_small_excess_of_a_stage_is_chance_without_a_spare_cpu(excess_ratio, has_spare, is_found):
    results = pipeline.bad_unequal_stages()
    other, busiest = results[PipelineResult].positions
    busiest = replace(busiest, excess_ratio=excess_ratio)
    results[PipelineResult] = replace(results[PipelineResult], positions=(other, busiest))
    without_spare = () if has_spare else busiest.ranks
    hosts = tuple(replace(one, without_spare=without_spare) for one in settings().hosts)
    results[SettingsResult] = settings(hosts=hosts)
    cpu_ms = {rank: 90 if rank in busiest.ranks else 20 for rank in RANKS}
    results = on_cpus(results, queue_ns={}, cpu_ns={r: ms * MS for r, ms in cpu_ms.items()})
    outcome = outcome_of("PIP101", results)
    assert bool(outcome.findings) == is_found
    assert is_found or "no more CPUs than ranks" in outcome.not_checked[0].why


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (StragglerCause.CPU_TAKEN, "other processes take its CPU"),
        (StragglerCause.TRACING, "the profiler slows the stage down"),
        (StragglerCause.SLOW_DEVICE, ""),  # another rule names it
        (StragglerCause.MORE_WORK, None),
    ],
)
def test_a_stage_whose_cpu_others_take_holds_no_more_layers(cause, said):
    """None: the rule fires. The stage runs longer on a CPU, too, since it shares its core."""
    slow = pipeline.bad_unequal_stages()
    busiest = slow[PipelineResult].positions[1]
    one = StragglerSet(
        ranks=busiest.ranks,
        pattern=StragglerPattern.PERSISTENT,
        cause=cause,
        lost_ns_per_step=MS,
        share_of_step_ratio=0.05,
        confidence=0.9,
        cause_confidence=0.6,
        scenario="",
    )
    results = on_cpus(slow, cpu_ns=dict.fromkeys(busiest.ranks, 13 * MS))
    results[StragglersResult] = replace(results[StragglersResult], sets=(one,))
    outcome = outcome_of("PIP101", results)
    assert bool(outcome.findings) == (said is None)
    assert [one.why for one in outcome.not_checked if said and said in one.why] or not said


@pytest.mark.parametrize(("queue_ms", "is_found"), [(1, True), (5, False)])
def test_cpu_ranks_that_lack_a_cpu_have_no_slow_link(queue_ms, is_found):
    """The transfers cost 3 ms of each step."""
    waits = dict.fromkeys(RANKS, queue_ms * MS)
    outcome = outcome_of("STR107", on_cpus(stragglers.bad_slow_link(), queue_ns=waits))
    assert bool(outcome.findings) == is_found


@pytest.mark.parametrize("nodes", [("a",), ("a", "b")])
def test_transfers_that_are_slow_at_times_need_a_network_between_cpu_ranks(nodes):
    at_times = replace(stragglers.LINK, nodes=nodes, num_compared=0, steps=(3, 4, 7), num_steps=9)
    bad = stragglers.bad_slow_link()
    bad[StragglersResult] = replace(bad[StragglersResult], links=(at_times,))
    found = outcome_of("STR107", on_cpus(bad, queue_ns=dict.fromkeys(RANKS, 0))).findings
    assert bool(found) == (len(nodes) > 1)


RANK_2 = JobFailure(rank=2, kind="exception", message="rank 2 raised", step=14, after_ns=None)
TOLD = JobError(rank=2, kind="ValueError", message="no data", step=14, is_peer_loss=False)


@pytest.mark.parametrize(
    ("kind", "errors", "fix"),
    [
        ("run", (TOLD,), "Read error.json and output.log in the folder of that rank."),
        ("run", (), "Read output.log in the folder of that rank."),
        (
            "capture",
            (TOLD,),
            "Read output.log of the run, and error.json in the folder of that rank.",
        ),
        ("capture", (), "Read output.log of the run."),
    ],
)
def test_a_failed_job_points_to_files_that_are_there(kind, errors, fix):
    results = job.bad_job_failed()
    results[JobResult] = replace(
        results[JobResult], kind=kind, failure=RANK_2, errors=errors, outcome="failed"
    )
    assert [one.fix for one in outcome_of("CAP104", results).findings] == [fix]


@pytest.mark.parametrize(
    ("queue_ms", "others_ms", "named"),
    [(1, 0, (2,)), (5, 0, ()), (9, 8, (2,)), (9, 5, ())],
)
def test_messages_are_held_up_only_where_no_cpu_explains_it(queue_ms, others_ms, named):
    """Rank 2 holds up messages for 4 ms of each step; its peers wait for a CPU, too, or not."""
    waits = {rank: queue_ms if rank == 2 else others_ms for rank in RANKS}
    queue_ns = {rank: ms * MS for rank, ms in waits.items()}
    results = on_cpus(stragglers.bad_messages_held_up(), queue_ns=queue_ns)
    outcome = outcome_of("STR104", results)
    assert tuple(rank for one in outcome.findings for rank in one.ranks) == named
    why = f"waits {queue_ms - others_ms}.00 ms longer than they do for a free CPU"
    assert named or why in outcome.not_checked[0].why


def test_what_a_busy_machine_excuses_hides_no_other_rank():
    results = {
        **stragglers.bad_messages_held_up(),
        MessagesResult: messages({1: 4 * MS, 2: 4 * MS}),
    }
    outcome = outcome_of("STR104", on_cpus(results, queue_ns={1: 5 * MS}))
    assert [one.ranks for one in outcome.findings] == [(2,)]


def test_a_wait_that_the_gpu_does_not_notice_costs_nothing():
    """Each GPU idles 2.8 ms of 20: enough for a wait of 5 ms, and too little for one of 6."""
    for waits_ms, named in ((5, [(1,)]), (6, [])):
        results = {**healthy(), PausesResult: pauses(queue_ns={1: waits_ms * MS})}
        outcome = outcome_of("HST110", results)
        assert [one.ranks for one in outcome.findings] == named
        why = "".join(one.why for one in outcome.not_checked)
        assert ("its GPU has work meanwhile: it idles for 2.80 ms" in why) is (not named)

        results = {**healthy(), StepLogResult: step_log(input_ns={3: waits_ms * MS + MS // 5})}
        outcome = outcome_of("INP102", results)
        assert [one.ranks for one in outcome.findings] == [(3,)] * bool(named)
        why = "".join(one.why for one in outcome.not_checked)
        assert ("its GPU has work meanwhile" in why) is (not named)
