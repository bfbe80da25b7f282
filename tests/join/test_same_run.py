import pytest
from msgspec.structs import replace

from distprof.errors import InputError
from distprof.join.windows import same_run
from distprof.run.run import Quality
from distprof.schema import ABSENT
from tests.builders import RankBuilder

MINUTE = 60 * 10**9


def made(rank, start=0, end=100, *, path="", world=4, backend="nccl", events=10, epoch=True):
    return RankBuilder(rank).rank(
        path=path or f"rank{rank}.json",
        world_size=world,
        backend=backend,
        capture_start_ns=start,
        capture_end_ns=end,
        has_epoch=epoch,
        quality=Quality(num_events=events),
    )


def kept(*ranks):
    chosen, gaps = same_run(ranks)
    return [rank.path for rank in chosen], [gap.what for gap in gaps]


def test_ranks_of_one_recording_stay_in_order():
    assert kept(made(2), made(0), made(1)) == (["rank0.json", "rank1.json", "rank2.json"], [])


def test_the_larger_of_two_jobs_is_analysed():
    chosen, gaps = same_run([made(0), made(1), made(0, world=8, path="other/rank0.json")])
    assert [rank.path for rank in chosen] == ["rank0.json", "rank1.json"]
    assert gaps[0].what == "mixed-runs"
    assert "other/rank0.json" in gaps[0].message
    assert "world size 8 (nccl)" in gaps[0].message


def test_a_file_that_names_no_world_belongs_to_any():
    assert kept(made(0), made(1, world=None)) == (["rank0.json", "rank1.json"], [])


def test_a_copy_is_dropped():
    paths, gaps = kept(made(0), made(0, path="copy/rank0.json"), made(1))
    assert (paths, gaps) == (["rank0.json", "rank1.json"], ["duplicate-files"])


@pytest.mark.parametrize("number", [ABSENT, 0])
@pytest.mark.parametrize("differs_in", ["activity", "host", "collectives", "name"])
def test_equal_times_and_counts_make_no_copy(number, differs_in):
    """Two ranks may begin and end together with as many events: only their rows say which it is."""

    def file(path, *, differs=False):
        more = {what: int(differs and what == differs_in) for what in ("activity", "host")}
        name = "gemm2" if differs and differs_in == "name" else "gemm"
        builder = RankBuilder(number).kernel(name, 0, 40 + more["activity"])
        builder.call("cudaLaunchKernel", 0, 5 + more["host"])
        builder.comm("all_reduce", 50 + int(differs and differs_in == "collectives"), 100)
        quality = Quality(num_events=3)
        return builder.rank(path=path, capture_start_ns=0, capture_end_ns=100, quality=quality)

    copies, gaps = same_run([file("a.json"), file("b.json")])
    assert [rank.path for rank in copies] == ["a.json"]
    assert gaps[0].what == "duplicate-files"
    assert "b.json repeats the content" in gaps[0].message
    both, gaps = same_run([file("a.json"), file("b.json", differs=True)])
    assert "duplicate-files" not in {gap.what for gap in gaps}
    if number == ABSENT:
        assert [rank.path for rank in both] == ["a.json", "b.json"]  # no rank is lost
    else:
        assert [gap.what for gap in gaps] == ["duplicate-ranks"]


def test_a_file_that_cannot_be_read_again_is_no_copy():
    class Unreadable:
        def load(self, *, every_host_row=False):
            raise InputError("a.json", expected="a cache entry", found="none")

    one, other = (replace(made(ABSENT, path=path), tables=Unreadable()) for path in ("a", "b"))
    chosen, _ = same_run([one, other])
    assert [rank.path for rank in chosen] == ["a", "b"]


def test_two_captures_of_one_rank_leave_the_newest():
    paths, gaps = kept(
        made(0, 0, 100, path="old"), made(0, 500, 600, path="new"), made(1, 500, 600)
    )
    assert (paths, gaps) == (["new", "rank1.json"], ["duplicate-ranks"])


def test_the_capture_that_most_ranks_share_goes_before_the_newest():
    paths, _ = kept(made(0, 0, 100, path="shared"), made(0, 500, 600, path="new"), made(1, 0, 100))
    assert paths == ["shared", "rank1.json"]


def test_recordings_far_apart_are_not_compared():
    paths, gaps = kept(made(0), made(1), made(2, 10 * MINUTE, 11 * MINUTE))
    assert (paths, gaps) == (["rank0.json", "rank1.json"], ["other-recordings"])


def test_one_file_is_spoken_of_as_one():
    _, (copies,) = same_run([made(0), made(0, path="copy/rank0.json"), made(1)])
    assert copies.message.startswith("copy/rank0.json repeats ")
    _, (others,) = same_run([made(0), made(0, 10 * MINUTE, 11 * MINUTE, path="later")])
    assert "analyses the newest and skips rank0.json" in others.message


def test_clocks_half_a_minute_apart_are_one_recording():
    assert kept(made(0), made(1, MINUTE // 2, MINUTE)) == (["rank0.json", "rank1.json"], [])


def test_a_file_without_a_date_is_never_far_apart():
    paths, gaps = kept(made(0, 10 * MINUTE, 11 * MINUTE), made(1, epoch=False))
    assert (paths, gaps) == (["rank0.json", "rank1.json"], [])


def test_files_that_tell_no_rank_get_the_free_numbers_in_order_of_name():
    unknown = [made(ABSENT, path=path, events=n) for n, path in enumerate(("b", "a"))]
    chosen, gaps = same_run([*unknown, made(1)])
    assert [(rank.rank, rank.path) for rank in chosen] == [(0, "a"), (1, "rank1.json"), (2, "b")]
    assert gaps[0].what == "rank-unknown"
    assert gaps[0].ranks == (0, 2)


def test_a_single_file_without_rank_is_rank_0_and_no_gap():
    chosen, gaps = same_run([made(ABSENT)])
    assert ([rank.rank for rank in chosen], gaps) == ([0], ())


@pytest.mark.parametrize("count", [0, 1])
def test_few_files_are_no_trouble(count):
    assert len(same_run([made(n) for n in range(count)])[0]) == count
