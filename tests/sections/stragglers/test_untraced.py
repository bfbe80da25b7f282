"""Steps without a profiler as witnesses against lateness that only traced steps show."""

import pytest

from distprof.sections.idle.measure import HostPauses
from distprof.sections.stragglers.contention import only_while_traced

TRACED = range(20, 32)
QUIET = (*range(1, 20), *range(32, 50))


def recorded(cpu_ns):
    """A rank whose training thread ran for ``cpu_ns(step)`` in each step."""
    times = {step: cpu_ns(step) for step in range(50)}
    return HostPauses(cpu_ns=times, untraced=frozenset(QUIET))


PEER = recorded(lambda _: 100)


def seen(cpu_ns, late=TRACED, longer=0.4):
    return only_while_traced(list(late), list(TRACED), longer, recorded(cpu_ns), [PEER])


def test_a_rank_that_runs_as_long_as_its_peer_elsewhere_is_late_only_while_traced():
    assert seen(lambda step: 140 if step in TRACED else 100) == len(QUIET)


def test_a_rank_that_runs_longer_in_all_steps_is_late_for_a_reason_of_its_own():
    assert seen(lambda _: 140) is None


@pytest.mark.parametrize("every", [2, 3, 4])
def test_lateness_now_and_then_is_its_own_if_it_is_as_frequent_elsewhere(every):
    late = [step for step in TRACED if step % every == 0]
    assert seen(lambda step: 140 if step % every == 0 else 100, late) is None
    assert seen(lambda step: 140 if step in late else 100, late) == len(QUIET)


@pytest.mark.parametrize(("num_faster", "is_late"), [(0, True), (2, True), (5, False)])
def test_steps_in_which_its_peer_is_as_much_slower_cancel_its_own(num_faster, is_late):
    """It runs 40 % longer in a sixth of all steps; its peer does in some others."""
    late = [20, 26]
    slower, faster = {20, 26, 2, 8, 14, 32, 38, 44}, [3, 9, 15, 33, 39][:num_faster]
    num_steps = seen(lambda step: 140 if step in slower else 71 if step in faster else 100, late)
    assert num_steps == (None if is_late else len(QUIET))


def test_a_rank_that_gets_slow_while_traced_is_judged_by_the_steps_that_follow():
    late = range(27, 32)
    assert seen(lambda step: 140 if step >= 27 else 100, late) is None
    assert seen(lambda step: 140 if step in late else 100, late) == len(range(32, 50))


def test_nothing_is_known_where_too_few_steps_would_show_it():
    alone = HostPauses(cpu_ns={1: 100, 2: 100, 20: 140}, untraced=frozenset({1, 2}))
    assert only_while_traced([20], [20], 0.4, alone, [PEER]) is None
    assert only_while_traced([20], [20], 0.4, HostPauses(), [PEER]) is None


def test_times_are_compared_in_steps_that_all_ranks_recorded():
    """The other rank says nothing of the steps in which this one ran longer."""
    other = HostPauses(cpu_ns=dict.fromkeys(range(32, 50), 100), untraced=frozenset(QUIET))
    own = recorded(lambda step: 100 if step >= 32 else 140)
    assert only_while_traced(list(TRACED), list(TRACED), 0.4, own, [other]) == len(range(32, 50))
