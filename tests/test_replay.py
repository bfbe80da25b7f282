"""Simulation of dependency graphs: by hand, and against the definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzzing.chunks import switched
from distprof import kernel as switch
from distprof.replay import CycleError, Graph, critical_path, simulate
from tests.built_kernel import built_kernel


@pytest.fixture(scope="module", params=["python", "kernel"], autouse=True)
def _by(request):
    """Every test here holds for both."""
    if request.param == "python":
        with switched(False):
            yield
        return
    with pytest.MonkeyPatch.context() as patch, switched(True):
        patch.setattr(switch, "_compiled", built_kernel())
        yield


def graph_of(number, *edges):
    source, target = zip(*edges, strict=True) if edges else ((), ())
    return Graph.of(number, np.array(source, np.int64), np.array(target, np.int64))


def test_a_chain_takes_the_sum():
    times = simulate(graph_of(3, (0, 1), (1, 2)), np.array([5, 7, 11]))
    assert times.start.tolist() == [0, 5, 12]
    assert (times.end.tolist(), times.makespan) == ([5, 12, 23], 23)


def test_a_join_waits_for_the_last_of_its_members():
    times = simulate(graph_of(4, (0, 2), (1, 2), (2, 3)), np.array([5, 9, 2, 1]))
    assert times.start.tolist() == [0, 0, 9, 11]


def test_delays_lie_on_the_edges_in_the_order_they_were_given():
    graph = graph_of(4, (1, 3), (0, 1), (0, 2), (2, 3))
    times = simulate(graph, np.array([1, 1, 1, 1]), delay=np.array([100, 0, 10, 0]))
    assert times.start.tolist() == [0, 1, 11, 102]


def test_nothing_starts_before_its_release():
    times = simulate(graph_of(2, (0, 1)), np.array([5, 5]), release=np.array([3, 20]))
    assert times.start.tolist() == [3, 20]


def test_many_sets_of_durations_at_once_are_as_one_after_another():
    graph = graph_of(4, (0, 2), (1, 2), (2, 3))
    sets = np.array([[5, 1], [9, 2], [2, 3], [1, 4]])
    together = simulate(graph, sets)
    for column in range(2):
        assert together.end[:, column].tolist() == simulate(graph, sets[:, column]).end.tolist()
    assert together.makespan.tolist() == [12, 9]


def test_the_critical_path_is_what_the_end_waited_for():
    graph = graph_of(5, (0, 2), (1, 2), (2, 3), (1, 4))
    times = simulate(graph, np.array([5, 9, 2, 1, 1]))
    assert critical_path(graph, times).tolist() == [1, 2, 3]


def test_operations_that_wait_for_each_other_are_named():
    with pytest.raises(CycleError, match="in a cycle") as error:
        graph_of(4, (0, 1), (1, 2), (2, 1), (2, 3))
    assert set(error.value.operations) == {1, 2, 3}


def test_an_edge_from_nowhere_is_refused():
    with pytest.raises(ValueError, match="outside the 2"):
        graph_of(2, (0, 5))


def test_nothing_at_all_takes_no_time():
    graph = graph_of(0)
    times = simulate(graph, np.empty(0, np.int64))
    assert (times.makespan, critical_path(graph, times).tolist()) == (0, [])


@st.composite
def jobs(draw):
    """Operations with edges from lower to higher numbers, then renumbered at random."""
    number = draw(st.integers(1, 12))
    pairs = [(i, j) for j in range(number) for i in range(j)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=30)) if pairs else []
    name = draw(st.permutations(range(number)))
    durations = draw(st.lists(st.integers(0, 50), min_size=number, max_size=number))
    delays = draw(st.lists(st.integers(0, 9), min_size=len(edges), max_size=len(edges)))
    renamed = [(name[a], name[b]) for a, b in edges]
    return number, renamed, np.array(durations), np.array(delays, dtype=np.int64)


@given(jobs())
def test_every_operation_starts_when_the_last_it_waits_for_has_ended(job):
    number, edges, duration, delay = job
    graph = graph_of(number, *edges)
    times = simulate(graph, duration, delay=delay)
    for operation in range(number):
        ends = [
            times.end[a] + wait
            for (a, b), wait in zip(edges, delay.tolist(), strict=True)
            if b == operation
        ]
        assert times.start[operation] == max(ends, default=0)
        assert times.end[operation] == times.start[operation] + duration[operation]


@given(jobs())
def test_the_critical_path_has_no_gap(job):
    number, edges, duration, delay = job
    graph = graph_of(number, *edges)
    times = simulate(graph, duration, delay=delay)
    path = critical_path(graph, times, delay=delay).tolist()
    assert times.start[path[0]] == 0
    assert times.end[path[-1]] == times.makespan
    waits = dict.fromkeys(edges, 0)
    for edge, wait in zip(edges, delay.tolist(), strict=True):
        waits[edge] = max(waits[edge], wait)
    for before, after in itertools.pairwise(path):
        assert times.start[after] == times.end[before] + waits[before, after]


def by_both(function):
    with switched(False):
        expected = function()
    with switched(True):
        return expected, function()


@given(
    jobs(),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from([np.int64, np.float64, np.int32]),
    st.sampled_from([np.int64, np.float64]),
    st.integers(0, 2**32),
)
def test_the_kernel_adds_as_numpy_does(job, wide, delay_wide, dtype, delay_dtype, seed):
    number, edges, _, _ = job
    drawn = np.random.default_rng(seed)
    duration = (drawn.integers(-5, 2**30, (number, *wide)) / 3).astype(dtype)
    delay = (drawn.integers(0, 2**40, (len(edges), *delay_wide)) / 7).astype(delay_dtype)
    release = drawn.integers(-3, 100, number)

    def times():
        graph = graph_of(number, *edges)
        return [
            simulate(graph, duration, delay=d, release=r)
            for d in (None, delay if delay_wide in ((), wide) or not wide else None)
            for r in (None, release)
        ]

    expected, found = by_both(times)
    for one, other in zip(expected, found, strict=True):
        assert (one.start.dtype, one.start.tobytes()) == (other.start.dtype, other.start.tobytes())
        assert (one.end.dtype, one.end.tobytes()) == (other.end.dtype, other.end.tobytes())


@given(st.integers(1, 8), st.data())
def test_graphs_with_cycles_are_refused_alike(number, data):
    operation = st.integers(0, number - 1)
    edges = data.draw(st.lists(st.tuples(operation, operation), max_size=12))

    def levels():
        try:
            graph = graph_of(number, *edges)
        except CycleError as error:
            return error.operations
        return graph.levels, graph.edge.tolist()

    expected, found = by_both(levels)
    assert expected == found


def test_what_is_no_number_is_left_to_numpy():
    graph = graph_of(3, (0, 2), (1, 2))

    def ends():
        return simulate(graph, np.array([np.nan, 5.0, 1.0])).end.tolist()

    expected, found = by_both(ends)
    assert str(expected) == str(found) == "[nan, 5.0, nan]"


def test_the_kernel_refuses_edges_outside_the_graph():
    compiled = built_kernel()
    one = np.array([0])
    with pytest.raises(ValueError, match="outside"):
        compiled.depths(1, one, np.array([1]))
    with pytest.raises(ValueError, match="outside"):
        compiled.depths(1, one, np.array([-1]))
    times = np.zeros(1, np.int64)
    for wrong in (
        (1, 1, False, one, np.array([1]), one, times, None, times, times),
        (1, 1, False, one, one, np.array([1]), times, None, times, times),
        (1, 2, False, one, one, one, times, None, times, times),
        (1, 1, False, one, one, one, times, np.zeros(3), times, times),
    ):
        with pytest.raises(ValueError, match=r"outside|number|length"):
            compiled.simulate(*wrong)
