"""Slow device, more work, or unknown which: by kernels that are slower alike, and by the work."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from distprof.sections.context import KernelSteps
from distprof.sections.stragglers.computing import Work, why_it_computes_longer
from distprof.terms import StragglerCause
from distprof.units import format_duration

SLOW_DEVICE, MORE_WORK, UNKNOWN = (
    StragglerCause.SLOW_DEVICE,
    StragglerCause.MORE_WORK,
    StragglerCause.UNKNOWN,
)
STEPS = (0, 1, 2)


def rank(times, counts=None, blocks=None):
    """A rank that spends these times, ns, in kernels a, b, …, in each of three steps."""
    counts, blocks = counts or [100] * len(times), blocks or [-1] * len(times)
    of_step = (np.array(values)[:, None] for values in (counts, times, blocks))
    columns = [np.repeat(values, 3, axis=1) for values in of_step]
    return SimpleNamespace(
        kernel_steps=KernelSteps(
            names=tuple("abcdefghij"[: len(times)]),
            count=columns[0],
            total_ns=columns[1],
            quartile_ns=np.repeat((columns[1] // columns[0])[:, :, None], 3, axis=2),
            blocks=columns[2],
        )
    )


def judged(slow_kernels, factor=1.5, work=None, counts=None):
    """The cause where so many of ten kernels are slower by a factor."""
    times = [round(1e6 * (factor if place < slow_kernels else 1)) for place in range(10)]
    analyses = {0: rank([10**6] * 10), 1: rank(times, counts), 2: rank([10**6] * 10)}
    longer = sum(times) / 1e7 - 1
    return why_it_computes_longer(1, longer, STEPS, analyses, work or Work())


@pytest.mark.parametrize(
    ("slow_kernels", "cause"),
    [(10, SLOW_DEVICE), (7, SLOW_DEVICE), (6, UNKNOWN), (5, UNKNOWN), (4, MORE_WORK)],
)
def test_the_share_of_kernel_time_that_is_slower_alike_decides(slow_kernels, cause):
    assert judged(slow_kernels).cause is cause


def test_between_half_and_seven_tenths_either_is_said_to_be_possible():
    found = judged(6)
    assert "slower hardware or more work" in found.evidence[0]
    assert found.confidence == 0


@pytest.mark.parametrize("slow_kernels", [3, 6])
def test_equal_tokens_and_kernel_counts_veto_more_work(slow_kernels):
    assert judged(slow_kernels, work=Work(tokens=1.0)).cause is SLOW_DEVICE


def test_more_tokens_are_more_work_however_even_the_kernels():
    found = judged(10, work=Work(tokens=1.5))
    assert (found.cause, found.detail) == (MORE_WORK, "tokens")


@pytest.mark.parametrize("exchanged", [1.3, 2.0])
def test_a_busy_experts_rank_is_no_slow_device(exchanged):
    found = judged(5, factor=1.8, work=Work(exchanged=exchanged))
    assert (found.cause, found.detail) == (MORE_WORK, "experts")


def test_a_device_that_is_slow_in_all_kernels_is_not_excused_by_its_exchanges():
    assert judged(10, work=Work(exchanged=1.3)).cause is SLOW_DEVICE


def with_blocks(slow_kernels, blocks, factor=1.4, work=None):
    """The same where the slow kernels of rank 1 have so many blocks, and all others have 1000."""
    times = [round(1e6 * (factor if place < slow_kernels else 1)) for place in range(10)]
    own = [blocks if place < slow_kernels else 1000 for place in range(10)]
    usual = rank([10**6] * 10, blocks=[1000] * 10)
    analyses = {0: usual, 1: rank(times, blocks=own), 2: usual}
    return why_it_computes_longer(1, sum(times) / 1e7 - 1, STEPS, analyses, work or Work())


@pytest.mark.parametrize("blocks", [1200, 1400])  # attention takes longer by the square
@pytest.mark.parametrize("slow_kernels", [4, 6, 10])
def test_kernels_of_more_blocks_are_more_work_however_even_the_kernels(slow_kernels, blocks):
    found = with_blocks(slow_kernels, blocks)
    assert (found.cause, found.detail) == (MORE_WORK, "inputs")
    assert f"{blocks / 1000:.2f} times the thread blocks" in found.evidence[0]


@pytest.mark.parametrize("slow_kernels", [5, 6, 10])
def test_the_same_kernels_on_the_same_grids_take_longer_on_a_slow_device(slow_kernels):
    assert with_blocks(slow_kernels, 1000).cause is SLOW_DEVICE


def test_a_few_more_blocks_do_not_excuse_a_slow_device():
    assert with_blocks(10, 1050).cause is SLOW_DEVICE


def test_larger_kernels_of_experts_alone_are_more_tokens():
    found = with_blocks(4, 1500, 1.5, Work(exchanged=1.5))
    assert (found.cause, found.detail) == (MORE_WORK, "experts")
    assert with_blocks(10, 1500, 1.5, Work(exchanged=1.5)).detail == "inputs"


def test_blocks_that_a_peer_does_not_record_decide_nothing():
    usual = rank([10**6] * 10, blocks=[1000] * 10)
    analyses = {0: rank([10**6] * 10), 1: rank([1_400_000] * 10, blocks=[1400] * 10), 2: usual}
    assert why_it_computes_longer(1, 0.4, STEPS, analyses, Work()).cause is SLOW_DEVICE


def test_more_kernels_are_more_work():
    analyses = {0: rank([10**6] * 4), 1: rank([1_300_000] * 4, [130] * 4), 2: rank([10**6] * 4)}
    found = why_it_computes_longer(1, 0.3, STEPS, analyses, Work())
    assert found.cause is MORE_WORK
    assert "1.30 times as many kernels" in found.evidence[0]


def test_ranks_without_a_common_kernel_cannot_be_compared():
    other = rank([10**6])
    own = SimpleNamespace(
        kernel_steps=KernelSteps(
            names=("z",),
            count=other.kernel_steps.count,
            total_ns=other.kernel_steps.total_ns,
            quartile_ns=other.kernel_steps.quartile_ns,
            blocks=other.kernel_steps.blocks,
        )
    )
    assert why_it_computes_longer(1, 0.3, STEPS, {0: other, 1: own}, Work()).cause is UNKNOWN


def with_names(names, times, counts):
    """A rank with these kernels."""
    one = rank(times, counts)
    return SimpleNamespace(kernel_steps=msgspec.structs.replace(one.kernel_steps, names=names))


def test_kernels_that_no_peer_runs_are_more_work() -> None:
    """An extra matmul may have a name of its own: no shared kernel is counted more often."""
    peer = with_names(("a", "b"), [600, 400], [10, 10])
    own = with_names(("a", "b", "matmul"), [640, 420, 800], [10, 10, 20])
    found = why_it_computes_longer(1, 0.86, STEPS, {0: peer, 1: own}, Work())
    assert found.cause is MORE_WORK
    assert found.evidence[0] == "kernels that its peers do not run add 80.0 % to the kernel time"


def test_other_versions_of_the_same_kernels_are_no_extra_work() -> None:
    peer = with_names(("a", "b", "tile64"), [600, 400, 500], [10, 10, 20])
    own = with_names(("a", "b", "tile128"), [900, 600, 750], [10, 10, 20])
    found = why_it_computes_longer(1, 0.5, STEPS, {0: peer, 1: own}, Work())
    assert found.cause is SLOW_DEVICE


def stalled(stall_ns, *, typical=10_000, blocks=6_400):
    """In the second step, launches of the first kernel take ``stall_ns`` longer in sum."""
    known = [100 * 64] * 10
    slow = rank([10**6] * 10, blocks=[blocks, *known[1:]]).kernel_steps
    slow.total_ns[0, 1] += stall_ns
    slow.quartile_ns[0, 1] = typical
    peers = (rank([10**6] * 10, blocks=known) for _ in range(2))
    analyses = dict(zip((0, 2), peers, strict=True)) | {1: SimpleNamespace(kernel_steps=slow)}
    return why_it_computes_longer(1, stall_ns / 10**7, (1,), analyses, Work())


@pytest.mark.parametrize("stall_ns", [2 * 10**6, 10**8])
def test_one_launch_that_takes_far_longer_than_all_others_is_a_stall(stall_ns):
    found = stalled(stall_ns)
    assert (found.cause, found.detail) == (SLOW_DEVICE, "stall")
    assert found.evidence[0].startswith(
        f"a takes {format_duration(stall_ns)} longer in a few launches"
    )


def test_a_kernel_that_is_slower_in_all_launches_is_no_stall():
    assert stalled(2 * 10**6, typical=30_000).detail != "stall"


def test_more_thread_blocks_are_no_stall():
    assert stalled(2 * 10**6, blocks=19_200).detail != "stall"
