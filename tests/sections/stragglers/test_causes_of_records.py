"""Why a rank is late, where its probes saw it and the trace does not."""

import msgspec
import numpy as np
import pytest

from distprof.run.run import ClockAlignment, Device
from distprof.sections.context import ProbeRecords
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST
from distprof.sections.stragglers import causes
from distprof.sections.stragglers import measure as stragglers
from distprof.sections.stragglers.causes import _in_proportion
from distprof.sections.stragglers.contention import QUEUED, Queue, _may_be_chance, _taken
from distprof.sections.stragglers.evidence import Cause, Excess
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.terms import CollectiveKind, StragglerCause, StragglerPattern
from tests.builders import RankBuilder, identity_clock, make_run
from tests.sections.joined import join_by_seq
from tests.sections.measured import measure

ALL_REDUCE = CollectiveKind.ALL_REDUCE
NUM_STEPS = 12
UNTRACED = range(NUM_STEPS, 2 * NUM_STEPS)
LATE = 1


def run_of_two():
    """Rank 1 starts its collective 600 of 1,000 late in each step, and the trace shows no cause."""
    ranks = []
    for rank in range(2):
        builder = RankBuilder(rank)
        for step in range(NUM_STEPS):
            low = 1_000 * step
            builder.step(step, low, low + 1_000).kernel("gemm", low, low + 100)
            start = low + (800 if rank == LATE else 200)
            builder.comm(
                "nccl", start, low + 900, ranks=(0, 1), seq=step, kind=CollectiveKind.ALL_REDUCE
            )
        ranks.append(builder.rank())
    matches, _ = join_by_seq(ranks)
    clock = ClockAlignment(
        domains=((0, 1),),
        names=("vm",),
        offset_ns=np.zeros(1),
        drift_ratio=np.zeros(1),
        reference_ns=0,
        residual_ns=np.array([5_000_000]),
        component=np.zeros(1, np.int32),
        within_ns=np.array([10]),
    )
    return make_run(ranks, steps=range(NUM_STEPS), matches=matches, clock=clock)


def first(pauses):
    run = run_of_two()
    found = measure(run)
    result = analyze_stragglers(
        run,
        found.analyses,
        found.step_time,
        ProbeRecords(found={HostPauses: pauses or {}}),
    )
    return result.ranks[0]


def test_ranks_of_one_host_are_judged_by_its_clock_and_not_by_the_residual_across_hosts():
    late = first(None)
    assert (late.rank, late.pattern) == (LATE, StragglerPattern.PERSISTENT)


@pytest.mark.parametrize(
    ("field", "cause", "word"),
    [
        ("gc_ns", StragglerCause.LATE_HOST, "garbage collection"),
        ("input_ns", StragglerCause.LATE_INPUT, "input phase"),
        ("run_queue_ns", StragglerCause.CPU_TAKEN, "free CPU"),
    ],
)
def test_what_probes_saw_of_the_late_rank_is_its_cause(field, cause, word):
    pauses = {
        rank: HostPauses(**{field: dict.fromkeys(range(NUM_STEPS), 550 if rank == LATE else 20)})
        for rank in range(2)
    }
    late = first(pauses)
    assert late.cause is cause
    assert any(word in text for text in late.evidence)


@pytest.mark.parametrize(
    ("queue_ns", "cpu_ns", "cause"),
    [
        ((20, 400), (10, 40), StragglerCause.CPU_TAKEN),
        ((20, 100), (10, 40), StragglerCause.LATE_INPUT),  # it sleeps
        ((20, 300), (10, 250), StragglerCause.LATE_INPUT),  # it computes longer
        ((200, 400), (180, 250), StragglerCause.CPU_TAKEN),  # not by much
        (None, (10, 40), StragglerCause.LATE_INPUT),
    ],
)
def test_input_is_not_late_where_the_loader_has_no_cpu(queue_ns, cpu_ns, cause):
    """Of 530 µs that the last rank waits longer for its input."""

    def per_step(value):
        return dict.fromkeys(range(NUM_STEPS), value)

    pauses = {
        rank: HostPauses(
            input_ns=per_step(550 if rank == LATE else 20),
            run_queue_ns=per_step(5),
            cpu_ns=per_step(100),
            loader_cpu_ns=per_step(cpu_ns[rank]),
            loader_queue_ns=queue_ns and per_step(queue_ns[rank]),
        )
        for rank in range(2)
    }
    late = first(pauses)
    assert late.cause is cause
    assert any("data loader" in text for text in late.evidence) is (
        cause is StragglerCause.CPU_TAKEN
    )


def test_what_every_rank_has_alike_is_no_cause():
    pauses = {rank: HostPauses(gc_ns=dict.fromkeys(range(NUM_STEPS), 550)) for rank in range(2)}
    assert not any("garbage" in text for text in first(pauses).evidence)


def test_what_one_rank_did_not_record_is_compared_with_nobody():
    pauses = {LATE: HostPauses(gc_ns=dict.fromkeys(range(NUM_STEPS), 550)), 0: HostPauses()}
    assert not any("garbage" in text for text in first(pauses).evidence)


def busy_machine(own_ns, queue_ns, cpu_ns=None, idle_ns=(0, 0), untraced_ns=()):
    """The latest rank of :func:`on_a_busy_machine`."""
    return on_a_busy_machine(own_ns, queue_ns, cpu_ns, idle_ns, untraced_ns).ranks[0]


def on_a_busy_machine(own_ns, queue_ns, cpu_ns=None, idle_ns=(0, 0), untraced_ns=()):
    """Ranks that compute for ``own_ns`` µs of each 1,000, and wait for a CPU as said meanwhile.

    They idle for ``idle_ns`` of it, and run on a CPU for ``cpu_ns`` where that is recorded, and for
    ``untraced_ns`` in as many steps without a profiler.
    """
    ranks, everybody = [], tuple(range(len(own_ns)))
    for rank, own in enumerate(own_ns):
        builder = RankBuilder(rank)
        for step in range(NUM_STEPS):
            low = 1_000 * step
            computes = low + own - idle_ns[rank]
            builder.step(step, low, low + 1_000).kernel("gemm", low, computes)
            builder.operator("aten::mm", low, computes)
            builder.comm("nccl", low + own, low + 900, ranks=everybody, seq=step, kind=ALL_REDUCE)
        ranks.append(builder.rank(device=Device(name="cpu")))
    matches, _ = join_by_seq(ranks)
    clock = identity_clock(everybody, 10)
    run = make_run(ranks, steps=range(NUM_STEPS), matches=matches, clock=clock)
    found = measure(run)
    pauses = {
        rank: HostPauses(
            run_queue_ns=dict.fromkeys(range(NUM_STEPS), queue),
            cpu_ns=cpu_ns
            and dict.fromkeys(range(NUM_STEPS), cpu_ns[rank])
            | (dict.fromkeys(UNTRACED, untraced_ns[rank]) if untraced_ns else {}),
            untraced=frozenset(UNTRACED),
        )
        for rank, queue in enumerate(queue_ns)
    }
    records = ProbeRecords(found={HostPauses: pauses})
    return analyze_stragglers(run, found.analyses, found.step_time, records)


def test_of_a_slow_set_those_whose_cpu_others_take_are_not_to_blame():
    """Ranks 1 and 3 are late by the same 200: one sleeps, the other has no CPU."""
    found = on_a_busy_machine(
        own_ns=(360, 560, 360, 560, 360),
        queue_ns=(60, 60, 60, 260, 60),
        cpu_ns=(160,) * 5,
        idle_ns=(100, 300, 100, 300, 100),
    )
    causes = {one.ranks: one.cause for one in found.sets}
    assert causes == {(1,): StragglerCause.LATE_HOST, (3,): StragglerCause.CPU_TAKEN}
    assert {one.lost_ns_per_step for one in found.sets} == {200}


def test_where_others_take_the_cpu_of_most_of_a_set_all_of_it_is_put_down_to_that():
    found = on_a_busy_machine(
        own_ns=(360, 560, 360, 560, 360, 560, 360),
        queue_ns=(60, 260, 60, 260, 60, 60, 60),
        cpu_ns=(160,) * 7,
        idle_ns=(100, 300, 100, 300, 100, 300, 100),
    )
    (one,) = found.sets
    assert (one.ranks, one.cause) == ((1, 3, 5), StragglerCause.CPU_TAKEN)


def test_a_rank_that_gets_less_of_the_cpu_than_its_peer_is_not_a_slow_device():
    late = busy_machine(own_ns=(400, 800), queue_ns=(20, 400))
    assert (late.rank, late.cause) == (1, StragglerCause.CPU_TAKEN)
    assert msgspec.json.encode(late)  # no number of numpy's


def test_a_rank_that_computes_more_waits_more_for_the_cpu_and_that_is_no_cause():
    """Both get half of the time they ask for; rank 1 asks for twice as much."""
    late = busy_machine(own_ns=(400, 800), queue_ns=(200, 400))
    assert late.rank == 1
    assert late.cause is not StragglerCause.CPU_TAKEN


def test_kernels_that_wait_for_a_cpu_are_no_slow_device():
    """Equal work, and 120 of the 150 that rank 1 takes longer are spent waiting for a CPU.

    Both wait much, so that rank 1 does not wait more in proportion to what its kernels take.
    """
    late = busy_machine(own_ns=(360, 510), queue_ns=(240, 360))
    assert (late.rank, late.cause) == (1, StragglerCause.CPU_TAKEN)
    assert msgspec.json.encode(late)
    assert any("blame is uncertain" in text for text in late.evidence)


@pytest.mark.parametrize("cpu_ns", [None, (100, 110)])
def test_a_rank_that_idles_because_others_have_its_cpu_is_no_late_host(cpu_ns):
    """Of the 200 that rank 1 idles longer, it waits for a CPU in 140."""
    late = busy_machine(own_ns=(360, 560), queue_ns=(200, 340), cpu_ns=cpu_ns, idle_ns=(100, 300))
    assert (late.rank, late.cause) == (1, StragglerCause.CPU_TAKEN)


def test_a_rank_that_sleeps_on_a_busy_machine_is_a_late_host():
    """It waits for a CPU as long as its peer, and runs as long: the rest is its own."""
    late = busy_machine(
        own_ns=(360, 560), queue_ns=(200, 210), cpu_ns=(160, 160), idle_ns=(100, 300)
    )
    assert (late.rank, late.cause) == (1, StragglerCause.LATE_HOST)


def test_a_rank_that_sleeps_and_whose_kernels_wait_for_a_cpu_is_a_late_host():
    """It idles 200 longer, and sleeps for 140 of that; in its kernels it waits for a CPU."""
    late = busy_machine(
        own_ns=(360, 700), queue_ns=(200, 400), cpu_ns=(160, 160), idle_ns=(100, 300)
    )
    assert (late.rank, late.cause) == (1, StragglerCause.LATE_HOST)


@pytest.mark.parametrize(
    ("queue_ns", "cause"),
    [((10, 10), StragglerCause.SLOW_DEVICE), ((40, 240), StragglerCause.CPU_TAKEN)],
)
def test_a_stage_of_one_rank_whose_cpu_others_take_is_no_slow_device(monkeypatch, queue_ns, cause):
    """Each rank holds a stage of its own, and rank 1 runs the same kernels half as fast."""
    monkeypatch.setattr(stragglers, "held_stages", lambda *_: {0: (0,), 1: (1,)})
    late = busy_machine(own_ns=(300, 600), queue_ns=queue_ns, cpu_ns=(260, 260))
    assert (late.rank, late.cause) == (1, cause)


@pytest.mark.parametrize(
    ("untraced_ns", "cause"),
    [
        pytest.param((300, 300), StragglerCause.TRACING, id="as long as its peer"),
        pytest.param((300, 340), StragglerCause.TRACING, id="a little longer"),
        pytest.param((300, 390), StragglerCause.SLOW_DEVICE, id="longer there, too"),
        pytest.param((), StragglerCause.SLOW_DEVICE, id="unknown"),
    ],
)
def test_a_rank_that_computes_longer_only_while_it_is_traced_is_no_slow_device(untraced_ns, cause):
    """While traced, rank 1 takes 40 % longer for the same kernels."""
    late = busy_machine((400, 560), (5, 5), cpu_ns=(400, 560), untraced_ns=untraced_ns)
    assert (late.rank, late.cause) == (1, cause)


def test_cpu_times_say_nothing_of_kernels_that_sleep():
    late = busy_machine((400, 560), (5, 5), cpu_ns=(40, 42), untraced_ns=(40, 42))
    assert (late.rank, late.cause) == (1, StragglerCause.SLOW_DEVICE)


@pytest.mark.parametrize(
    ("untraced_ns", "cause"),
    [
        pytest.param((200, 400), StragglerCause.TRACING, id="it has more to do, no slower core"),
        pytest.param((200, 560), StragglerCause.SLOW_DEVICE, id="slower there, too"),
    ],
)
def test_a_lone_stage_that_is_slow_only_while_it_is_traced_is_no_slow_device(
    monkeypatch, untraced_ns, cause
):
    """Rank 1 runs the same kernels half as fast, and has more to do outside of kernels."""
    monkeypatch.setattr(stragglers, "held_stages", lambda *_: {0: (0,), 1: (1,)})
    late = busy_machine((300, 600), (5, 5), cpu_ns=(300, 900), untraced_ns=untraced_ns)
    assert (late.rank, late.cause) == (1, cause)


@pytest.mark.parametrize(
    ("queue_ns", "cause"),
    [((150, 150), StragglerCause.CPU_TAKEN), ((40, 40), StragglerCause.SLOW_DEVICE)],
)
def test_a_stage_that_is_a_little_slower_on_a_busy_machine_is_no_slow_device(
    monkeypatch, queue_ns, cause
):
    """It takes 15 % longer for the same kernels, and shares its core with others all the time."""
    monkeypatch.setattr(stragglers, "held_stages", lambda *_: {0: (0,), 1: (1,)})
    late = busy_machine(own_ns=(400, 460), queue_ns=queue_ns, cpu_ns=(250, 250))
    assert (late.rank, late.cause) == (1, cause)


@pytest.mark.parametrize(
    ("queue_ns", "cpu_ns", "cause"),
    [
        ((200, 320), 240, StragglerCause.CPU_TAKEN),
        ((100, 120), 240, StragglerCause.LATE_HOST),
        ((200, 320), 330, StragglerCause.LATE_HOST),  # more than chance and queues explain
    ],
)
def test_a_stage_of_one_rank_that_idles_because_others_have_its_cpu_is_no_late_host(
    monkeypatch, queue_ns, cpu_ns, cause
):
    """Its CPU runs longer than that of the other stage, which may be because of its layers."""
    monkeypatch.setattr(stragglers, "held_stages", lambda *_: {0: (0,), 1: (1,)})
    late = busy_machine(
        own_ns=(360, 560), queue_ns=queue_ns, cpu_ns=(160, cpu_ns), idle_ns=(100, 300)
    )
    assert (late.rank, late.cause) == (1, cause)


@pytest.mark.parametrize(
    ("queue_ns", "cause"),
    [
        pytest.param((70, 60), StragglerCause.CPU_TAKEN, id="both wait for CPUs"),
        pytest.param((0, 60), StragglerCause.UNKNOWN, id="the late one waits"),
        pytest.param((60, 0), StragglerCause.UNKNOWN, id="the other one waits"),
    ],
)
def test_lateness_without_a_cause_is_put_down_to_cpus_that_are_taken_from_all(
    monkeypatch, queue_ns, cause
):
    """Threads of gloo and workers of loaders wait for CPUs too, and nothing records it."""
    monkeypatch.setattr(causes, "_of_own_time", lambda *_: Cause(StragglerCause.UNKNOWN))
    late = busy_machine(own_ns=(360, 560), queue_ns=queue_ns, cpu_ns=(300, 300))
    assert (late.rank, late.cause) == (1, cause)


def test_a_host_that_works_more_on_a_busy_machine_is_a_late_host():
    """It runs 110 longer, so that it also waits 90 longer for a CPU, in proportion."""
    late = busy_machine(
        own_ns=(360, 560), queue_ns=(160, 250), cpu_ns=(200, 310), idle_ns=(100, 300)
    )
    assert (late.rank, late.cause) == (1, StragglerCause.LATE_HOST)


@pytest.mark.parametrize(
    ("slept_ns", "is_lasting", "is_taken"),
    [(12, True, False), (8, True, True), (12, False, True), (20, False, False)],
)
def test_what_is_its_own_is_compared_with_how_much_later_it_is_in_many_steps(
    slept_ns, is_lasting, is_taken
):
    """18 of own time cost the others 32, because by chance each of them is late now and then."""
    of = Excess(QUEUED, 3.0, 37.0)
    queue = Queue(of, of, 40.0, 0.0, slept_ns=slept_ns, excess_ns=18.0, is_lasting=is_lasting)
    found = _taken(Cause(StragglerCause.LATE_HOST, ("idling",)), queue, 32.0)
    assert (found is not None and found.cause is StragglerCause.CPU_TAKEN) == is_taken


@pytest.mark.parametrize(
    ("cause", "is_counted", "runs_longer", "is_taken"),
    [
        pytest.param(StragglerCause.SLOW_DEVICE, False, 0.4, True, id="the pace of its core"),
        pytest.param(StragglerCause.SLOW_DEVICE, False, 0.6, False, id="a core that is slow"),
        pytest.param(StragglerCause.MORE_WORK, False, 0.4, True, id="some of its kernels"),
        pytest.param(StragglerCause.MORE_WORK, False, 0.6, False, id="some of them, by far"),
        pytest.param(StragglerCause.MORE_WORK, True, 0.4, False, id="more kernels"),
    ],
)
def test_running_longer_where_all_wait_for_cpus_proves_little_without_counts(
    cause, is_counted, runs_longer, is_taken
):
    of = Excess(QUEUED, 3.0, 37.0)
    queue = Queue(of, of, 40.0, 20.0, runs_longer=runs_longer, excess_ns=10.0, is_lasting=True)
    found = _taken(Cause(cause, ("it computes",), "", 0.95, is_counted), queue, 10.0)
    assert (found is not None and found.cause is StragglerCause.CPU_TAKEN) == is_taken


@pytest.mark.parametrize(
    ("slept_ns", "is_once", "is_taken"),
    [(40, False, False), (9, False, True), (40, True, True), (90, True, False)],
)
def test_a_short_sleep_proves_nothing_where_its_other_threads_wait_for_a_cpu_too(
    slept_ns, is_once, is_taken
):
    """The training thread waits for 40; one that waits for another thread of its rank sleeps."""
    of = Excess(QUEUED, 3.0, 37.0)
    queue = Queue(
        of,
        of,
        40.0,
        0.0,
        slept_ns=slept_ns,
        excess_ns=10.0,
        is_lasting=not is_once,
        is_once=is_once,
    )
    found = _taken(Cause(StragglerCause.LATE_HOST, ("idling",)), queue, 10.0)
    assert (found is not None and found.cause is StragglerCause.CPU_TAKEN) == is_taken


@pytest.mark.parametrize(
    ("peers_wait_ns", "slept_ns", "is_once", "is_chance"),
    [
        pytest.param(25, 39, True, True, id="its peers wait as long"),
        pytest.param(25, 60, True, False, id="it sleeps for longer"),
        pytest.param(25, 39, False, False, id="in more steps than one"),
        pytest.param(7, 39, True, False, id="its peers hardly wait"),
    ],
)
def test_a_rank_that_sleeps_once_may_be_late_for_threads_that_had_no_cpu(
    peers_wait_ns, slept_ns, is_once, is_chance
):
    """Its training thread waits for 7: what its other threads wait shows only by its peers."""
    of = Excess(QUEUED, 7.0 - peers_wait_ns, float(peers_wait_ns))
    queue = Queue(of, of, 7.0, 0.0, slept_ns=slept_ns, excess_ns=20.0, is_once=is_once)
    assert _may_be_chance(Cause(StragglerCause.LATE_HOST), queue) is is_chance
    assert not _may_be_chance(Cause(StragglerCause.LATE_HOST, detail="gc"), queue)
    assert not _may_be_chance(Cause(StragglerCause.LATE_HOST), None)


def excess(what, own, peers):
    return Excess(what, float(own - peers), float(peers))


def test_idling_between_kernels_in_proportion_to_them_is_no_late_cpu():
    """A stage with twice the layers launches twice the kernels, and idles twice as long between."""
    host = excess(HOST, 16, 9)
    assert _in_proportion(host, [host, excess(COMPUTATION, 88, 42)]).what == COMPUTATION
    assert _in_proportion(host, [host, excess(COMPUTATION, 50, 42)]).what == HOST
    assert _in_proportion(host, [host, excess(COMPUTATION, 42, 42)]).what == HOST
    assert _in_proportion(host, [host]).what == HOST
