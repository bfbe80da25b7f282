"""What is sent to a cluster together, without a cluster."""

import pickle
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import DistprofError, InputError
from distprof.ingest.cluster import (
    BATCH_S,
    MOST_CALLS,
    PER_WORKER,
    Call,
    Queue,
    call_each,
    unpacked,
)
from tests.ingest import work

pytest.importorskip("distributed", reason="needs the extra dask")


def call(number, fn=work.double):
    return Call(fn=fn, args=(number,), kwargs={}, future=Future(), path="")


def numbers(batch):
    return [one.args[0] for one in batch.calls]


def served(queue, workers, call_s):
    """Sizes of the batches of one server after another, each of whose calls takes so long."""
    running, sizes = [], []
    while not queue.is_idle:
        while (batch := queue.take(workers)) is not None:
            running.append(batch)
            sizes.append(len(batch.calls))
        batch = running.pop(0)
        assert queue.done(batch, call_s * len(batch.calls))
    return sizes


@given(st.integers(1, 200), st.integers(1, 5), st.sampled_from([0.001, 0.05, 0.3, 5.0]))
def test_every_call_is_sent_once_in_order(count, workers, call_s):
    queue, sent = Queue(), []
    for number in range(count):
        queue.add(call(number))
    running = []
    while not queue.is_idle:
        while (batch := queue.take(workers)) is not None:
            running.append(batch)
            sent += numbers(batch)
        assert 0 < len(running) <= PER_WORKER * workers
        batch = running.pop(0)
        assert len(batch.calls) <= MOST_CALLS
        assert queue.done(batch, call_s * len(batch.calls))
        assert not queue.done(batch, 1.0)
    assert sent == list(range(count))


def test_short_calls_go_together_and_fewer_at_the_end():
    queue = Queue()
    for number in range(400):
        queue.add(call(number))
    sizes = served(queue, 2, BATCH_S / 10)
    assert sizes[:4] == [1, 1, 1, 1]  # how long they take is not known yet
    assert max(sizes) == 10
    assert sizes[-4:] == [1, 1, 1, 1]
    assert len(sizes) < 80


def test_very_short_calls_have_a_limit():
    queue = Queue()
    for number in range(2_000):
        queue.add(call(number))
    assert max(served(queue, 1, 0.0)) == MOST_CALLS


def test_long_calls_go_singly():
    queue = Queue()
    for number in range(50):
        queue.add(call(number))
    assert set(served(queue, 2, BATCH_S)) == {1}


def test_what_is_known_of_one_function_says_nothing_of_another():
    queue = Queue()
    for number in range(100):
        queue.add(call(number))
    served(queue, 1, 0.001)
    for number in range(100):
        queue.add(call(number, work.process_id))
    assert len(queue.take(1).calls) == 1


def test_functions_do_not_share_a_batch():
    queue = Queue()
    for number in range(40):
        queue.add(call(number))
    served(queue, 1, 0.001)
    for number in range(60):
        queue.add(call(number, work.double if number < 7 else work.process_id))
    assert numbers(queue.take(1)) == list(range(7))


def test_calls_go_to_their_place_the_least_busy_first():
    queue = Queue()
    for number in range(6):
        queue.add(call(number), "one" if number < 4 else "two")
    batches = [queue.take(8) for _ in range(4)]
    assert [batch.place for batch in batches] == ["one", "two", "one", "two"]
    assert [numbers(batch) for batch in batches] == [[0], [4], [1], [5]]
    queue.done(batches[0])
    assert queue.take(8).place == "one"


def test_what_may_have_killed_its_worker_goes_alone_and_first():
    queue = Queue()
    for number in range(40):
        queue.add(call(number))
    served(queue, 1, 0.001)
    queue.add_alone([call("a"), call("b")])
    queue.add(call("c"))
    assert [numbers(queue.take(4)) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_all_that_has_no_result_is_left_when_the_cluster_is_lost():
    queue = Queue()
    for number in range(5):
        queue.add(call(number))
    queue.add_alone([call(9)])
    batch = queue.take(1)
    assert numbers(batch) == [9]
    assert sorted(one.args[0] for one in queue.clear()) == [0, 1, 2, 3, 4, 9]
    assert queue.is_idle
    assert not queue.done(batch)


# What a worker does -------------------------------------------------------------------------------


def refuse_to_be_sent(number):
    if number == 1:
        return open  # can be sent
    return (one for one in range(number))


class UnlikeError(Exception):
    """Cannot be made again from its text, as many errors of other libraries."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def raise_what_cannot_be_made_again(number):
    if number % 2:
        raise UnlikeError(number, number)
    return number


def raise_input_error(number):
    raise InputError(str(number), expected="more", found="less")


def made(fn, count):
    packed, seconds = call_each(fn, [((number,), {}) for number in range(count)])
    assert seconds >= 0
    return unpacked(packed)


def test_what_fails_in_one_call_costs_no_other():
    found = made(work.refuse_odd, 4)
    assert [result for result, _ in found] == [0, None, 2, None]
    assert isinstance(found[1][1], ValueError)
    assert "refuse_odd" in found[1][1].__notes__[0]


def test_a_result_that_cannot_be_sent_costs_no_other():
    found = made(refuse_to_be_sent, 2)
    assert "generator" in str(found[0][1])
    assert found[1] == (open, None)


def test_an_error_that_cannot_be_made_again_is_told_in_words():
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(UnlikeError(1, 2)))
    found = made(raise_what_cannot_be_made_again, 3)
    assert [result for result, _ in found] == [0, None, 2]
    assert isinstance(found[1][1], DistprofError)
    assert str(found[1][1]) == "UnlikeError: 1 and 1"


def test_errors_of_ours_arrive_as_they_are():
    ((_, error),) = made(raise_input_error, 1)
    assert isinstance(error, InputError)
    assert (error.source, error.found) == ("0", "less")
